"""Data sets, their iterators, readers and normalizers; importing this reads no data."""

from dl4jlegacy.datasets.bundled import DigitsDataSetIterator, IrisDataSetIterator, read_digits, read_iris
from dl4jlegacy.datasets.dataset import DataSet, SplitTestAndTrain, one_hot
from dl4jlegacy.datasets.exported import ExportedDataSetIterator, ExportedMultiDataSetIterator, export
from dl4jlegacy.datasets.idx import read_idx
from dl4jlegacy.datasets.images.image_files import ImageRecordReader, Images
from dl4jlegacy.datasets.images.image_transforms import AugmentedDataSetIterator, ImageTransform
from dl4jlegacy.datasets.iterator import DataSetIterator, ListDataSetIterator
from dl4jlegacy.datasets.map_style import MapDataSetIterator
from dl4jlegacy.datasets.mnist import MnistDataSetIterator, data_directory, read_mnist
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet, MultiDataSetIterator
from dl4jlegacy.datasets.normalizers import (
    ImagePreProcessingScaler,
    Normalizer,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
    normalizer_from_json,
)
from dl4jlegacy.datasets.reading import Reading
from dl4jlegacy.datasets.sequences.sequence_files import CsvSequenceDataSetIterator
from dl4jlegacy.datasets.sources import NAMES, DataSource, load
from dl4jlegacy.datasets.tables.csv_files import CsvDataSetIterator, read_csv
from dl4jlegacy.datasets.tables.inspection import inspect_csv
from dl4jlegacy.datasets.tables.schema_guess import guess_schema
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.text.characters import CharacterIterator, character_windows, read_sonnets

__all__ = [
    "NAMES",
    "AugmentedDataSetIterator",
    "CharacterIterator",
    "CsvDataSetIterator",
    "CsvSequenceDataSetIterator",
    "DataSet",
    "DataSetIterator",
    "DataSource",
    "DigitsDataSetIterator",
    "ExportedDataSetIterator",
    "ExportedMultiDataSetIterator",
    "ImagePreProcessingScaler",
    "ImageRecordReader",
    "ImageTransform",
    "Images",
    "IrisDataSetIterator",
    "ListDataSetIterator",
    "ListMultiDataSetIterator",
    "MapDataSetIterator",
    "MnistDataSetIterator",
    "MultiDataSet",
    "MultiDataSetIterator",
    "Normalizer",
    "NormalizerMinMaxScaler",
    "NormalizerStandardize",
    "Reading",
    "SplitTestAndTrain",
    "TransformProcess",
    "character_windows",
    "data_directory",
    "export",
    "guess_schema",
    "inspect_csv",
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
