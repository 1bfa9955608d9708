"""Data sets, their iterators, readers and normalizers; importing this reads no data."""

from dl4jlegacy.datasets.bundled import DigitsDataSetIterator, IrisDataSetIterator, read_digits, read_iris
from dl4jlegacy.datasets.characters import CharacterIterator, character_windows, read_sonnets
from dl4jlegacy.datasets.csv_files import CsvDataSetIterator, read_csv
from dl4jlegacy.datasets.dataset import DataSet, SplitTestAndTrain, one_hot
from dl4jlegacy.datasets.exported import ExportedDataSetIterator, export
from dl4jlegacy.datasets.idx import read_idx
from dl4jlegacy.datasets.iterator import DataSetIterator, ListDataSetIterator
from dl4jlegacy.datasets.mnist import MnistDataSetIterator, data_directory, read_mnist
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.normalizers import (
    ImagePreProcessingScaler,
    Normalizer,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
    normalizer_from_json,
)
from dl4jlegacy.datasets.sources import NAMES, DataSource, load

__all__ = [
    "NAMES",
    "CharacterIterator",
    "CsvDataSetIterator",
    "DataSet",
    "DataSetIterator",
    "DataSource",
    "DigitsDataSetIterator",
    "ExportedDataSetIterator",
    "ImagePreProcessingScaler",
    "IrisDataSetIterator",
    "ListDataSetIterator",
    "ListMultiDataSetIterator",
    "MnistDataSetIterator",
    "MultiDataSet",
    "Normalizer",
    "NormalizerMinMaxScaler",
    "NormalizerStandardize",
    "SplitTestAndTrain",
    "character_windows",
    "data_directory",
    "export",
    "load",
    "normalizer_from_json",
    "one_hot",
    "read_csv",
    "read_digits",
    "read_idx",
    "read_iris",
    "read_mnist",
    "read_sonnets",
]
