"""The public names of the package and where each lives: listed here once, for type checkers and for ``__init__``."""

from .datasets import (
    CsvDataSetIterator as CsvDataSetIterator,
    DataSet as DataSet,
    DataSetIterator as DataSetIterator,
    DigitsDataSetIterator as DigitsDataSetIterator,
    IrisDataSetIterator as IrisDataSetIterator,
    ListDataSetIterator as ListDataSetIterator,
    MnistDataSetIterator as MnistDataSetIterator,
    NormalizerMinMaxScaler as NormalizerMinMaxScaler,
    NormalizerStandardize as NormalizerStandardize,
)
from .errors import ConfError as ConfError, DataError as DataError, Dl4jError as Dl4jError
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
    restore_multi_layer_network as restore_multi_layer_network,
    write_model as write_model,
)
from .runner import ActorNetworkRunner as ActorNetworkRunner
from .scaleout import (
    CollectingAggregator as CollectingAggregator,
    CollectionJobIterator as CollectionJobIterator,
    Conf as Conf,
    DataSetJobIterator as DataSetJobIterator,
    Job as Job,
    JobAggregator as JobAggregator,
    JobIterator as JobIterator,
    ParameterAveragingAggregator as ParameterAveragingAggregator,
    Result as Result,
    WorkerPerformer as WorkerPerformer,
)
from .scaleout.outcome import TrainingResult as TrainingResult
from .seeding import Stream as Stream
from .version import __version__ as __version__
