"""Neural networks (layer 2): configurations, layers, training, evaluation, model files. Knows nothing of clusters."""

from dl4jlegacy.nn.builder import ListBuilder, NeuralNetConfigurationBuilder
from dl4jlegacy.nn.conf import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.dbn import DBN, StackedDenoisingAutoEncoder
from dl4jlegacy.nn.evaluation import Evaluation
from dl4jlegacy.nn.evaluation_binary import EvaluationBinary
from dl4jlegacy.nn.evaluation_calibration import EvaluationCalibration
from dl4jlegacy.nn.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.layers import RBM, AutoEncoder, DenseLayer, Layer, OutputLayer
from dl4jlegacy.nn.listeners import CollectScoresListener, PerformanceListener, ScoreIterationListener, TrainingListener
from dl4jlegacy.nn.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.regression_evaluation import RegressionEvaluation
from dl4jlegacy.nn.roc import ROC
from dl4jlegacy.nn.roc_columns import ROCBinary, ROCMultiClass
from dl4jlegacy.nn.serializer import restore_multi_layer_network, restore_normalizer, write_model
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
    "DenseLayer",
    "Evaluation",
    "EvaluationBinary",
    "EvaluationCalibration",
    "GradientCheckUtil",
    "Layer",
    "ListBuilder",
    "MultiLayerConfiguration",
    "MultiLayerNetwork",
    "Nadam",
    "Nesterovs",
    "NeuralNetConfiguration",
    "NeuralNetConfigurationBuilder",
    "NoOp",
    "OutputLayer",
    "PerformanceListener",
    "ROCBinary",
    "ROCMultiClass",
    "RegressionEvaluation",
    "RmsProp",
    "ScoreIterationListener",
    "Sgd",
    "StackedDenoisingAutoEncoder",
    "TrainingListener",
    "Updater",
    "restore_multi_layer_network",
    "restore_normalizer",
    "write_model",
]
