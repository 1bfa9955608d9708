"""dl4jlegacy: elastic data-parallel training of neural networks, after the legacy Deeplearning4j scale-out.

::

    from dl4jlegacy import ActorNetworkRunner, Conf, DigitsDataSetIterator

The public names below are loaded when they are first used (PEP 562), so that ``import dl4jlegacy`` costs next to
nothing and pulls in no compiler, no actors and no terminal library.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dl4jlegacy.version import __version__

if TYPE_CHECKING:  # for type checkers and editors; the same names again in _HOME, which a test compares
    from dl4jlegacy.datasets import (
        CsvDataSetIterator,
        DataSet,
        DataSetIterator,
        DigitsDataSetIterator,
        IrisDataSetIterator,
        ListDataSetIterator,
        MnistDataSetIterator,
        NormalizerMinMaxScaler,
        NormalizerStandardize,
    )
    from dl4jlegacy.errors import ConfError, DataError, Dl4jError
    from dl4jlegacy.nn import (
        DBN,
        LSTM,
        RBM,
        AdaGrad,
        Adam,
        AutoEncoder,
        BatchNormalization,
        ComputationGraph,
        ComputationGraphConfiguration,
        ConvolutionLayer,
        DenseLayer,
        Evaluation,
        GravesLSTM,
        InputType,
        MultiLayerConfiguration,
        MultiLayerNetwork,
        Nesterovs,
        NeuralNetConfiguration,
        OutputLayer,
        RmsProp,
        RnnOutputLayer,
        ScoreIterationListener,
        Sgd,
        StackedDenoisingAutoEncoder,
        SubsamplingLayer,
        restore_multi_layer_network,
        write_model,
    )
    from dl4jlegacy.runner import ActorNetworkRunner
    from dl4jlegacy.scaleout import (
        CollectingAggregator,
        CollectionJobIterator,
        Conf,
        DataSetJobIterator,
        Job,
        JobAggregator,
        JobIterator,
        ParameterAveragingAggregator,
        Result,
        WorkerPerformer,
    )
    from dl4jlegacy.scaleout.outcome import TrainingResult

__all__ = [
    "DBN",
    "LSTM",
    "RBM",
    "ActorNetworkRunner",
    "AdaGrad",
    "Adam",
    "AutoEncoder",
    "BatchNormalization",
    "CollectingAggregator",
    "CollectionJobIterator",
    "ComputationGraph",
    "ComputationGraphConfiguration",
    "Conf",
    "ConfError",
    "ConvolutionLayer",
    "CsvDataSetIterator",
    "DataError",
    "DataSet",
    "DataSetIterator",
    "DataSetJobIterator",
    "DenseLayer",
    "DigitsDataSetIterator",
    "Dl4jError",
    "Evaluation",
    "GravesLSTM",
    "InputType",
    "IrisDataSetIterator",
    "Job",
    "JobAggregator",
    "JobIterator",
    "ListDataSetIterator",
    "MnistDataSetIterator",
    "MultiLayerConfiguration",
    "MultiLayerNetwork",
    "Nesterovs",
    "NeuralNetConfiguration",
    "NormalizerMinMaxScaler",
    "NormalizerStandardize",
    "OutputLayer",
    "ParameterAveragingAggregator",
    "Result",
    "RmsProp",
    "RnnOutputLayer",
    "ScoreIterationListener",
    "Sgd",
    "StackedDenoisingAutoEncoder",
    "SubsamplingLayer",
    "TrainingResult",
    "WorkerPerformer",
    "__version__",
    "restore_multi_layer_network",
    "write_model",
]

_HOME = {
    "dl4jlegacy.datasets": (
        "CsvDataSetIterator",
        "DataSet",
        "DataSetIterator",
        "DigitsDataSetIterator",
        "IrisDataSetIterator",
        "ListDataSetIterator",
        "MnistDataSetIterator",
        "NormalizerMinMaxScaler",
        "NormalizerStandardize",
    ),
    "dl4jlegacy.errors": (
        "ConfError",
        "DataError",
        "Dl4jError",
    ),
    "dl4jlegacy.nn": (
        "DBN",
        "LSTM",
        "RBM",
        "AdaGrad",
        "Adam",
        "AutoEncoder",
        "BatchNormalization",
        "ComputationGraph",
        "ComputationGraphConfiguration",
        "ConvolutionLayer",
        "DenseLayer",
        "Evaluation",
        "GravesLSTM",
        "InputType",
        "MultiLayerConfiguration",
        "MultiLayerNetwork",
        "Nesterovs",
        "NeuralNetConfiguration",
        "OutputLayer",
        "RmsProp",
        "RnnOutputLayer",
        "ScoreIterationListener",
        "Sgd",
        "StackedDenoisingAutoEncoder",
        "SubsamplingLayer",
        "restore_multi_layer_network",
        "write_model",
    ),
    "dl4jlegacy.runner": ("ActorNetworkRunner",),
    "dl4jlegacy.scaleout": (
        "CollectingAggregator",
        "CollectionJobIterator",
        "Conf",
        "DataSetJobIterator",
        "Job",
        "JobAggregator",
        "JobIterator",
        "ParameterAveragingAggregator",
        "Result",
        "WorkerPerformer",
    ),
    "dl4jlegacy.scaleout.outcome": ("TrainingResult",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
