"""Neural networks: configurations, layers, training, evaluation, model files. Independent of clusters."""

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.nn.conf.network import (
    ComputationGraphConfiguration,
    GraphBuilder,
    ListBuilder,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    NeuralNetConfigurationBuilder,
)
from dl4jlegacy.nn.evaluation.binary import EvaluationBinary
from dl4jlegacy.nn.evaluation.calibration import EvaluationCalibration
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.evaluation.roc import ROC, ROCBinary, ROCMultiClass
from dl4jlegacy.nn.fitting.early_stopping import (
    BestScoreEpochTerminationCondition,
    EarlyStoppingConfiguration,
    EarlyStoppingResult,
    EarlyStoppingTrainer,
    InvalidScoreIterationTerminationCondition,
    MaxEpochsTerminationCondition,
    MaxScoreIterationTerminationCondition,
    MaxTimeIterationTerminationCondition,
    ScoreImprovementEpochTerminationCondition,
)
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.fitting.model_savers import InMemoryModelSaver, LocalFileModelSaver
from dl4jlegacy.nn.fitting.score_calculators import (
    AutoencoderScoreCalculator,
    ClassificationScoreCalculator,
    DataSetLossCalculator,
    RegressionScoreCalculator,
    ROCScoreCalculator,
)
from dl4jlegacy.nn.fitting.transfer_learning import FineTuneConfiguration, TransferLearning
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.serializer import (
    restore_computation_graph,
    restore_label_names,
    restore_model,
    restore_multi_layer_network,
    restore_normalizer,
    write_model,
)
from dl4jlegacy.nn.interchange.modelimport.keras import KerasModelImport
from dl4jlegacy.nn.interchange.onnx.exporter import write_onnx
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.bidirectional import Bidirectional, GravesBidirectionalLSTM, LastTimeStep
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer, ConvolutionLayer
from dl4jlegacy.nn.layers.elementwise import ActivationLayer, DropoutLayer, ZeroPadding1DLayer, ZeroPaddingLayer
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, FrozenLayer, Layer
from dl4jlegacy.nn.layers.loss_layers import CenterLossOutputLayer, LossLayer
from dl4jlegacy.nn.layers.lstm import LSTM, GravesLSTM
from dl4jlegacy.nn.layers.normalization import BatchNormalization, LocalResponseNormalization
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.reconstruction_distribution import (
    BernoulliReconstructionDistribution,
    ExponentialReconstructionDistribution,
    GaussianReconstructionDistribution,
)
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer, Subsampling1DLayer, SubsamplingLayer
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.listeners import CollectScoresListener, PerformanceListener, ScoreIterationListener, TrainingListener
from dl4jlegacy.nn.network.dbn import DBN, StackedDenoisingAutoEncoder
from dl4jlegacy.nn.network.generative import (
    generate_at_mean_given_z,
    generate_random_given_z,
    reconstruction_log_probability,
)
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.schedules import (
    CosineSchedule,
    ExponentialSchedule,
    InverseSchedule,
    LinearSchedule,
    MapSchedule,
    PolySchedule,
    SigmoidSchedule,
    StepSchedule,
    TorchStepSchedule,
)
from dl4jlegacy.nn.optimization.updaters import (
    AdaBelief,
    AdaDelta,
    AdaGrad,
    Adam,
    AdaMax,
    AdamW,
    AMSGrad,
    Nadam,
    Nesterovs,
    NoOp,
    RmsProp,
    Sgd,
    Updater,
)
from dl4jlegacy.nn.optimization.weights import (
    BinomialDistribution,
    ConstantDistribution,
    LogNormalDistribution,
    NormalDistribution,
    OrthogonalDistribution,
    TruncatedNormalDistribution,
    UniformDistribution,
)
from dl4jlegacy.nn.preprocessors import (
    BinomialSamplingPreProcessor,
    CnnToFeedForwardPreProcessor,
    CnnToRnnPreProcessor,
    ComposableInputPreProcessor,
    FeedForwardToCnnPreProcessor,
    FeedForwardToRnnPreProcessor,
    RnnToCnnPreProcessor,
    RnnToFeedForwardPreProcessor,
    UnitVarianceProcessor,
    ZeroMeanAndUnitVariancePreProcessor,
    ZeroMeanPrePreProcessor,
)
from dl4jlegacy.nn.pretrain_stack import reconstruct_input, sample_input
from dl4jlegacy.nn.vertices.combine import (
    ElementWiseVertex,
    L2NormalizeVertex,
    L2Vertex,
    MergeVertex,
    ScaleVertex,
    ShiftVertex,
    SubsetVertex,
)
from dl4jlegacy.nn.vertices.shape import (
    DuplicateToTimeSeriesVertex,
    LastTimeStepVertex,
    PoolHelperVertex,
    PreprocessorVertex,
    ReshapeVertex,
    StackVertex,
    UnstackVertex,
)

__all__ = [
    "DBN",
    "LSTM",
    "RBM",
    "ROC",
    "AMSGrad",
    "ActivationLayer",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "AdaMax",
    "Adam",
    "AdamW",
    "AutoEncoder",
    "AutoencoderScoreCalculator",
    "BatchNormalization",
    "BernoulliReconstructionDistribution",
    "BestScoreEpochTerminationCondition",
    "Bidirectional",
    "BinomialDistribution",
    "BinomialSamplingPreProcessor",
    "CenterLossOutputLayer",
    "ClassificationScoreCalculator",
    "CnnToFeedForwardPreProcessor",
    "CnnToRnnPreProcessor",
    "CollectScoresListener",
    "ComposableInputPreProcessor",
    "ComputationGraph",
    "ComputationGraphConfiguration",
    "ConstantDistribution",
    "Convolution1DLayer",
    "ConvolutionLayer",
    "CosineSchedule",
    "DataSetLossCalculator",
    "DenseLayer",
    "DropoutLayer",
    "DuplicateToTimeSeriesVertex",
    "EarlyStoppingConfiguration",
    "EarlyStoppingResult",
    "EarlyStoppingTrainer",
    "ElementWiseVertex",
    "EmbeddingLayer",
    "Evaluation",
    "EvaluationBinary",
    "EvaluationCalibration",
    "ExponentialReconstructionDistribution",
    "ExponentialSchedule",
    "FeedForwardToCnnPreProcessor",
    "FeedForwardToRnnPreProcessor",
    "FineTuneConfiguration",
    "FrozenLayer",
    "GaussianReconstructionDistribution",
    "GlobalPoolingLayer",
    "GradientCheckUtil",
    "GraphBuilder",
    "GravesBidirectionalLSTM",
    "GravesLSTM",
    "InMemoryModelSaver",
    "InputType",
    "InvalidScoreIterationTerminationCondition",
    "InverseSchedule",
    "KerasModelImport",
    "L2NormalizeVertex",
    "L2Vertex",
    "LastTimeStep",
    "LastTimeStepVertex",
    "Layer",
    "LinearSchedule",
    "ListBuilder",
    "LocalFileModelSaver",
    "LocalResponseNormalization",
    "LogNormalDistribution",
    "LossLayer",
    "MapSchedule",
    "MaxEpochsTerminationCondition",
    "MaxScoreIterationTerminationCondition",
    "MaxTimeIterationTerminationCondition",
    "MergeVertex",
    "MultiLayerConfiguration",
    "MultiLayerNetwork",
    "Nadam",
    "Nesterovs",
    "NeuralNetConfiguration",
    "NeuralNetConfigurationBuilder",
    "NoOp",
    "NormalDistribution",
    "OrthogonalDistribution",
    "OutputLayer",
    "PerformanceListener",
    "PolySchedule",
    "PoolHelperVertex",
    "PreprocessorVertex",
    "ROCBinary",
    "ROCMultiClass",
    "ROCScoreCalculator",
    "RegressionEvaluation",
    "RegressionScoreCalculator",
    "ReshapeVertex",
    "RmsProp",
    "RnnOutputLayer",
    "RnnToCnnPreProcessor",
    "RnnToFeedForwardPreProcessor",
    "ScaleVertex",
    "ScoreImprovementEpochTerminationCondition",
    "ScoreIterationListener",
    "Sgd",
    "ShiftVertex",
    "SigmoidSchedule",
    "StackVertex",
    "StackedDenoisingAutoEncoder",
    "StepSchedule",
    "Stream",
    "Subsampling1DLayer",
    "SubsamplingLayer",
    "SubsetVertex",
    "TorchStepSchedule",
    "TrainingListener",
    "TransferLearning",
    "TruncatedNormalDistribution",
    "UniformDistribution",
    "UnitVarianceProcessor",
    "UnstackVertex",
    "Updater",
    "VariationalAutoencoder",
    "ZeroMeanAndUnitVariancePreProcessor",
    "ZeroMeanPrePreProcessor",
    "ZeroPadding1DLayer",
    "ZeroPaddingLayer",
    "generate_at_mean_given_z",
    "generate_random_given_z",
    "reconstruct_input",
    "reconstruction_log_probability",
    "restore_computation_graph",
    "restore_label_names",
    "restore_model",
    "restore_multi_layer_network",
    "restore_normalizer",
    "sample_input",
    "write_model",
    "write_onnx",
]
