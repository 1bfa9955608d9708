"""Neural networks (layer 2): configurations, layers, training, evaluation, model files. Knows nothing of clusters."""

from dl4jlegacy.nn.builder import ListBuilder, NeuralNetConfigurationBuilder
from dl4jlegacy.nn.conf import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.dbn import DBN, StackedDenoisingAutoEncoder
from dl4jlegacy.nn.evaluation import Evaluation
from dl4jlegacy.nn.evaluation_binary import EvaluationBinary
from dl4jlegacy.nn.evaluation_calibration import EvaluationCalibration
from dl4jlegacy.nn.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.graph import ComputationGraph
from dl4jlegacy.nn.graph_builder import GraphBuilder
from dl4jlegacy.nn.graph_conf import ComputationGraphConfiguration
from dl4jlegacy.nn.layers import RBM, AutoEncoder, DenseLayer, Layer, OutputLayer
from dl4jlegacy.nn.listeners import CollectScoresListener, PerformanceListener, ScoreIterationListener, TrainingListener
from dl4jlegacy.nn.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.regression_evaluation import RegressionEvaluation
from dl4jlegacy.nn.roc import ROC
from dl4jlegacy.nn.roc_columns import ROCBinary, ROCMultiClass
from dl4jlegacy.nn.serializer import (
    restore_computation_graph,
    restore_model,
    restore_multi_layer_network,
    restore_normalizer,
    write_model,
)
from dl4jlegacy.nn.updaters import (
    AdaBelief,
    AdaDelta,
    AdaGrad,
    Adam,
    AdaMax,
    AMSGrad,
    Nadam,
    Nesterovs,
    NoOp,
    RmsProp,
    Sgd,
    Updater,
)
from dl4jlegacy.nn.vertices import (
    ElementWiseVertex,
    L2NormalizeVertex,
    L2Vertex,
    MergeVertex,
    ScaleVertex,
    ShiftVertex,
    SubsetVertex,
)
from dl4jlegacy.nn.vertices_examples import (
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
    "RBM",
    "ROC",
    "AMSGrad",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "AdaMax",
    "Adam",
    "AutoEncoder",
    "CollectScoresListener",
    "ComputationGraph",
    "ComputationGraphConfiguration",
    "DenseLayer",
    "DuplicateToTimeSeriesVertex",
    "ElementWiseVertex",
    "Evaluation",
    "EvaluationBinary",
    "EvaluationCalibration",
    "GradientCheckUtil",
    "GraphBuilder",
    "L2NormalizeVertex",
    "L2Vertex",
    "LastTimeStepVertex",
    "Layer",
    "ListBuilder",
    "MergeVertex",
    "MultiLayerConfiguration",
    "MultiLayerNetwork",
    "Nadam",
    "Nesterovs",
    "NeuralNetConfiguration",
    "NeuralNetConfigurationBuilder",
    "NoOp",
    "OutputLayer",
    "PerformanceListener",
    "PoolHelperVertex",
    "PreprocessorVertex",
    "ROCBinary",
    "ROCMultiClass",
    "RegressionEvaluation",
    "ReshapeVertex",
    "RmsProp",
    "ScaleVertex",
    "ScoreIterationListener",
    "Sgd",
    "ShiftVertex",
    "StackVertex",
    "StackedDenoisingAutoEncoder",
    "SubsetVertex",
    "TrainingListener",
    "UnstackVertex",
    "Updater",
    "restore_computation_graph",
    "restore_model",
    "restore_multi_layer_network",
    "restore_normalizer",
    "write_model",
]
