"""The public names of the package and where each lives: listed here once, for type checkers and for ``__init__``."""

from .cluster.inference_program import ClusterInference as ClusterInference
from .datasets import (
    CsvDataSetIterator as CsvDataSetIterator,
    CsvSequenceDataSetIterator as CsvSequenceDataSetIterator,
    DataSet as DataSet,
    DataSetIterator as DataSetIterator,
    DigitsDataSetIterator as DigitsDataSetIterator,
    ImageRecordReader as ImageRecordReader,
    IrisDataSetIterator as IrisDataSetIterator,
    ListDataSetIterator as ListDataSetIterator,
    MapDataSetIterator as MapDataSetIterator,
    MnistDataSetIterator as MnistDataSetIterator,
    NormalizerMinMaxScaler as NormalizerMinMaxScaler,
    NormalizerStandardize as NormalizerStandardize,
)
from .errors import (
    ConfError as ConfError,
    ContractError as ContractError,
    DataError as DataError,
    Dl4jError as Dl4jError,
)
from .models.model import TrainedModel as TrainedModel
from .nn import (
    DBN as DBN,
    LSTM as LSTM,
    RBM as RBM,
    AdaGrad as AdaGrad,
    Adam as Adam,
    AutoEncoder as AutoEncoder,
    BatchNormalization as BatchNormalization,
    ComputationGraph as ComputationGraph,
    ComputationGraphConfiguration as ComputationGraphConfiguration,
    ConvolutionLayer as ConvolutionLayer,
    DenseLayer as DenseLayer,
    Evaluation as Evaluation,
    GravesLSTM as GravesLSTM,
    InputType as InputType,
    MultiLayerConfiguration as MultiLayerConfiguration,
    MultiLayerNetwork as MultiLayerNetwork,
    Nesterovs as Nesterovs,
    NeuralNetConfiguration as NeuralNetConfiguration,
    OutputLayer as OutputLayer,
    RmsProp as RmsProp,
    RnnOutputLayer as RnnOutputLayer,
    ScoreIterationListener as ScoreIterationListener,
    Sgd as Sgd,
    StackedDenoisingAutoEncoder as StackedDenoisingAutoEncoder,
    SubsamplingLayer as SubsamplingLayer,
    TrainingListener as TrainingListener,
    restore_multi_layer_network as restore_multi_layer_network,
    write_model as write_model,
)
from .models.parallel_inference import ParallelInference as ParallelInference
from .cluster.parallel_wrapper import ParallelWrapper as ParallelWrapper
from .cluster.runner import ActorNetworkRunner as ActorNetworkRunner
from .training.saved_model import load_model as load_model
from .scaleout import (
    Aggregation as Aggregation,
    CollectingAggregator as CollectingAggregator,
    CollectionJobIterator as CollectionJobIterator,
    Conf as Conf,
    DataSetJobIterator as DataSetJobIterator,
    DeltaAggregator as DeltaAggregator,
    Fold as Fold,
    HogWildWorkRouter as HogWildWorkRouter,
    InMemoryStateTracker as InMemoryStateTracker,
    IterativeReduceWorkRouter as IterativeReduceWorkRouter,
    EarlyStopping as EarlyStopping,
    Job as Job,
    JobAggregator as JobAggregator,
    JobIterator as JobIterator,
    MultiLayerNetworkPerformer as MultiLayerNetworkPerformer,
    ParameterAveragingAggregator as ParameterAveragingAggregator,
    Phase as Phase,
    Plan as Plan,
    Result as Result,
    SlotMemory as SlotMemory,
    SlotPlan as SlotPlan,
    StateTracker as StateTracker,
    ValidationConf as ValidationConf,
    WorkerPerformer as WorkerPerformer,
    WorkRouter as WorkRouter,
    register_performer as register_performer,
    register_router as register_router,
)
from .scaleout.actors import (
    BatchActor as BatchActor,
    HeartbeatActor as HeartbeatActor,
    MasterActor as MasterActor,
    ModelSavingActor as ModelSavingActor,
    WorkerActor as WorkerActor,
)
from .scaleout.persistence.history import HistoryEntry as HistoryEntry
from .scaleout.hazelcast.store import HazelcastStateTracker as HazelcastStateTracker
from .scaleout.links.mesh.configuration import VoidConfiguration as VoidConfiguration
from .scaleout.monitoring.observers import ModelSaver as ModelSaver
from .scaleout.monitoring.outcome import TrainingResult as TrainingResult
from .scaleout.phases import EventStats as EventStats
from .scaleout.monitoring.stats import TrainingStats as TrainingStats
from .scaleout.zookeeper import (
    ZooKeeperConfigurationRegister as ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever as ZookeeperConfigurationRetriever,
)
from .arrays.seeding import Stream as Stream
from .scaleout.saved_run import read_history as read_history, read_stats as read_stats
from .version import __version__ as __version__
