"""Loads, scales or transforms the data that a run's ``Conf`` names; a resumed run gets the same data."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.datasets import DataSet, DataSource, load
from dl4jlegacy.datasets.columns.table import find_columns
from dl4jlegacy.datasets.columns.transforms import CategoricalToOneHot, Linear, QuantileBins, RemoveColumns
from dl4jlegacy.datasets.kind import LabelChoice
from dl4jlegacy.datasets.leaks import scaled_labels, telling_columns, warn_of_telling
from dl4jlegacy.datasets.normalizers import NormalizerMinMaxScaler, NormalizerStandardize, as_read
from dl4jlegacy.datasets.place import Place
from dl4jlegacy.datasets.precision import warn_of_equal
from dl4jlegacy.datasets.reading import UNREAD, Reading, place_of
from dl4jlegacy.datasets.tables.inspection import GUESSED_ROWS, Inspection, check_one_kind, inspect_csv
from dl4jlegacy.datasets.tables.label_cells import listed_gaps
from dl4jlegacy.datasets.tables.pandas_index import warn_of_index
from dl4jlegacy.datasets.tables.schema_guess import guess_schema
from dl4jlegacy.datasets.tables.stored_tables import is_large
from dl4jlegacy.datasets.tables.svmlight_files import TooWideError
from dl4jlegacy.datasets.tables.svmlight_schema import svmlight_schema
from dl4jlegacy.datasets.tables.table_files import index_columns
from dl4jlegacy.datasets.tables.text_rows import MISSING
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import CellError, ConfError, DataError, counted
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.input_type import InputTypeConvolutionalFlat
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.storage import paths as storage

__all__ = ["can_be_encoded", "first_examples", "load_data", "load_new", "reload", "standardized"]

logger = logging.getLogger(__name__)


def load_data(
    name: str,
    data_dir: str = "",
    *,
    scale: bool = True,
    reading: Reading = UNREAD,
    keep_index: bool = False,
    place: Place | None = None,
) -> DataSource:
    """Return the named data set, prepared for training; raises ``DataError``.

    Args:
        name, data_dir: as ``load`` takes them, or in S3.
        scale: whether features outside 0 to 1 are scaled to 0 to 1 by their minimum and maximum in the training data;
            the ``normalizer`` of the result's reading holds these. A ``transform`` with steps decides itself about
            scaling.
        reading: how the data are read, as far as known.
        keep_index: whether the index column of pandas is a feature column.
        place: the place of the data set on this machine, if already known.
    """
    place = place or place_of(reading.local(name))
    folder = storage.local(data_dir) or None
    found = load(place, data_dir=folder, reading=reading, keep_index=keep_index, rounded=False)
    source = dataclasses.replace(found, name=name)
    if source.train.is_sparse:
        return source
    if not (scale and source.reading.kind.is_scaled and _is_scaled(source, place, reading.transform)):
        warn_of_equal(source.train.features, f"data set {name}", source.columns, source.train.features_mask)
        return _in_float32(source, source.train, source.test)
    normalizer = NormalizerMinMaxScaler().fit(source.train.rounded())
    train, test = (normalizer.transform(as_read(normalizer, part)) for part in (source.train, source.test))
    return _in_float32(source.with_reading(normalizer=normalizer), train, test)


def _is_scaled(source: DataSource, place: Place, transform: TransformProcess | None) -> bool:
    """Return whether features are to be scaled to 0 to 1: no schema has made them, and some are outside of 0 to 1."""
    if transform is not None and (
        transform.steps or not place.is_svmlight or is_large(place.tables, len(transform.columns))
    ):
        return False
    x = source.train.features
    low, high = np.float32(x.min()), np.float32(x.max())
    return bool(low < 0.0 or high > 1.0)


def _in_float32(source: DataSource, *parts: DataSet) -> DataSource:
    """Return the source with these parts as training and test data, in float32."""
    none = np.zeros(source.train.n_in, bool)
    train, test = (part.rounded(none) for part in parts)
    return dataclasses.replace(source, train=train, test=test)


def reload(conf: Conf, data_dir: str = "", place: Place | None = None) -> DataSource:
    """Return the data that a Conf names; args and errors as for ``load_data``."""
    data = load_data(
        conf.dataset,
        data_dir or conf.data_dir,
        scale=conf.scale_features,
        reading=conf.reading,
        keep_index=conf.keep_index,
        place=place,
    )
    return standardized(conf, data)


def standardized(conf: Conf, data: DataSource) -> DataSource:
    """Return the data of a run with a network; images are scaled by channel, if its zoo model learns them so.

    Data that are scaled already are returned as they are.
    """
    model, taken = zoo.ZOO.get(conf.model), getattr(conf.multi_layer_conf, "input_type", None)
    is_asked = conf.scale_features and model is not None and model.of_images
    if not is_asked or not isinstance(taken, InputTypeConvolutionalFlat) or data.reading.normalizer is not None:
        return data
    normalizer = NormalizerStandardize().fit_channels(data.train, taken.channels)
    train, test = (normalizer.transform(part) for part in (data.train, data.test))
    return dataclasses.replace(data.with_reading(normalizer=normalizer), train=train, test=test)


def load_new(
    conf: Conf,
    *,
    label: str = "",
    regression: bool = False,
    multi_label: bool = False,
    missing: Sequence[str] | None = None,
    inspected: Inspection | None = None,
    encode: bool = False,
) -> tuple[Conf, DataSource]:
    """Return the data of a new run, and its Conf with the schema fitted to the data, or with the reader of its images.

    Without a schema in the Conf, a schema is guessed for tables if a label or a prediction task is given, if the tables
    are large, if not all columns are numbers, or to ``encode``.

    Args:
        conf: names the data.
        label: the column to learn, by name or number; "": that of the schema, else the last one. Several names are
            separated by commas; they are numbers to predict, or labels with ``multi_label``.
        regression: the label is a number to predict.
        multi_label: the labels are 0 or 1 each, and do not exclude each other.
        missing: words that mark a missing value, besides empty cells, in features and labels; None: those of the
            schema, or the usual ones.
        inspected: the inspection of the whole first table with this label, if there was one.
        encode: whether a guessed schema gets all steps that help a network, as ``guess_schema`` has them; not for
            SVMLight files, for large tables, and where the Conf does not scale features.

    Raises:
        DataError: the data cannot be read, or do not fit the schema. ConfError: the schema contradicts itself, or lists
            other words for missing values.
    """
    check_one_kind(regression=regression, multi_label=multi_label)
    named, place = conf.dataset, place_of(conf.local(conf.dataset))  # remote data are downloaded once
    choice = LabelChoice(
        label=label,
        regression=regression,
        multi_label=multi_label,
        missing=missing,
        transform=conf.transform,
        is_alone=conf.transform is None and len(conf.readers) < 2,
    )
    of_kind = conf.kind.labelled(choice, conf.reader, place)
    if missing is not None and place.is_svmlight:
        raise ConfError("SVMLight files have no cells that stand for no value; leave --missing out")
    if of_kind is not None:
        conf = conf.replace(**of_kind)
        if conf.transform is not None:
            conf = conf.replace(transform=_with_missing(conf.transform, missing))
    elif conf.transform is not None:
        conf = conf.replace(transform=_with_missing(_with_label(conf.transform, choice), missing))
    elif (
        (encode := encode and conf.scale_features and conf.reader is None and can_be_encoded(place))
        or choice.has_label
        or missing is not None
        or (conf.reader is None and is_large(place.tables))
    ):
        try:
            conf = conf.replace(transform=_guessed(conf, place, choice, inspected, encode=encode))
        except TooWideError:
            if choice.has_label:
                raise
    try:
        data = reload(conf, place=place)
    except CellError:
        if of_kind is not None or conf.transform is not None:
            raise
        found = _inspected(conf, place, "", MISSING, inspected)
        if not any(column.missing or column.type == "category" for column in found.columns):
            raise
        warn_of_index(found.index, found.name)
        conf = conf.replace(transform=guess_schema(found, scale=conf.scale_features))
        data = reload(conf, place=place)
    _check_read_as_asked(conf, data.reading, named)
    _warn_of_ignored_columns(data.reading)
    _warn_of_telling(data, named)
    return conf.replace(transform=data.reading.transform, **_fitted(conf, data.reading)), data


def _fitted(conf: Conf, reading: Reading) -> dict[str, Any]:
    """Return the readers as fitted to the data, by their fields; not a default one that the Conf does not name."""
    found = reading.readers
    return {kind.name: reader for kind, reader in found if getattr(conf, kind.name) or reader != kind.reader()}


def _warn_of_ignored_columns(reading: Reading) -> None:
    steps = () if reading.transform is None else reading.transform.steps
    ignored = [name for step in steps if isinstance(step, RemoveColumns) for name in step.columns]
    if ignored:
        logger.warning("ignored columns: %s (see dl4j data inspect)", ", ".join(ignored))


def _check_read_as_asked(conf: Conf, reading: Reading, named: str) -> None:
    """Raise ``DataError`` if the Conf has the reader of another kind of data."""
    for kind, _ in conf.readers:
        if kind is not reading.kind:
            raise DataError(f"data set {named!r} {kind.not_these}")


def _warn_of_telling(source: DataSource, named: str) -> None:
    """Warn of table columns that determine the label by themselves."""
    train, reading = source.train, source.reading
    if train.is_sparse or train.features.ndim != 2 or reading.reader is not None:
        return
    made = _made_of_numbers(reading.transform)
    if reading.label_scale is not None:
        telling = scaled_labels(train.features, train.labels, reading.label_scale)
        found = [number for number in telling if not (source.columns and source.columns[number] in made)]
    elif reading.is_multi_label:
        return
    else:
        words = _columns_of_words(source)
        bins = {number for number, name in enumerate(source.columns) if name in made}
        found = telling_columns(train.features, train.labels.argmax(axis=1), list(words.values()), bins)
        names = {group[0]: name for name, group in words.items()}
        warn_of_telling(found, [names.get(c, name) for c, name in enumerate(source.columns)], f"data set {named}")
        return
    warn_of_telling(found, source.columns, f"data set {named}")


def _made_of_numbers(schema: TransformProcess | None) -> set[str]:
    """Return the columns that a schema has made of numbers by their quantiles, or by a regression."""
    steps = () if schema is None else schema.steps
    return {name for step in steps if isinstance(step, QuantileBins | Linear) for name in step.made()}


def _columns_of_words(source: DataSource) -> dict[str, list[int]]:
    """Return the feature numbers that a schema has made of each categorical column, one for each word."""
    place = {name: number for number, name in enumerate(source.columns)}
    found: dict[str, list[int]] = {}
    schema = source.reading.transform
    for step in () if schema is None else schema.steps:
        for name, (column,) in step.made().items() if isinstance(step, CategoricalToOneHot) else ():
            if name in place:
                found.setdefault(column, []).append(place[name])
    return found


def _with_missing(transform: TransformProcess, missing: Sequence[str] | None) -> TransformProcess:
    """Return a schema with the words for missing values; raises ``ConfError`` if the schema lists other words."""
    if missing is None:
        return transform
    listed = listed_gaps(missing)
    if transform.missing != MISSING and set(listed_gaps(transform.missing)) != set(listed):
        raise ConfError(
            f"the schema lists {', '.join(map(repr, transform.missing))} as missing, and --missing "
            f"{', '.join(map(repr, missing))}; leave one of them out"
        )
    return msgspec.structs.replace(transform, missing=listed)


def can_be_encoded(place: Place) -> bool:
    """Return whether numbers of the data may be encoded: those of tables that are neither SVMLight files nor large."""
    return bool(place.tables) and not place.is_svmlight and not is_large(place.tables)


def _guessed(
    conf: Conf, place: Place, choice: LabelChoice, inspected: Inspection | None, *, encode: bool
) -> TransformProcess:
    """Return the schema that fits the tables; raises ``DataError``."""
    fields = {"label": choice.label, **choice.kind, "scale": conf.scale_features}
    if place.is_svmlight and conf.reader is None:
        return svmlight_schema(place.tables, **fields)
    missing = MISSING if choice.missing is None else listed_gaps(choice.missing)
    first = _inspected(conf, place, choice.label, missing, inspected)
    warn_of_index(first.index, first.name)
    return guess_schema(first, **fields, encode=encode)


def _inspected(
    conf: Conf, place: Place, label: str, missing: Sequence[str], inspected: Inspection | None
) -> Inspection:
    """Return the inspection of the data set's first table; raises ``DataError`` if there is none."""
    if inspected is not None and inspected.rows <= GUESSED_ROWS and inspected.has_own_names:
        return inspected
    found = place.tables
    if not found:
        raise DataError(
            f"data set {conf.dataset!r} has no columns to choose from: --label, --regression, --missing and --schema "
            "are for tables, and it is none"
        )
    index = () if conf.keep_index else index_columns(found)
    return inspect_csv(found[0], label, rows=GUESSED_ROWS, index=index, missing=missing)


def _with_label(transform: TransformProcess, choice: LabelChoice) -> TransformProcess:
    """Return a schema with the label, or labels, that the user chose instead."""
    names = [column.name for column in transform.columns]
    chosen = find_columns(choice.label, names, "the schema") if choice.label else transform.label_columns
    several = choice.multi_label or (transform.multi_label and not choice.regression)
    real = not several and (choice.regression or transform.regression or len(chosen) > 1)
    if (chosen, real, several) == (transform.label_columns, transform.regression, transform.multi_label):
        return transform
    is_one = len(chosen) == 1 and not several
    return msgspec.structs.replace(
        transform,
        label=chosen[0] if is_one else "",
        labels=() if is_one else chosen,
        regression=real,
        multi_label=several,
        classes=(),
        label_mean=0.0,
        label_std=0.0,
        label_means=(),
        label_stds=(),
        label_log=tuple(name for name in transform.label_log if real and name in chosen),
        label_limits=(),
        steps=tuple(
            step.for_other_labels() if isinstance(step, Linear) else step
            for step in transform.steps
            if real or not isinstance(step, Linear)
        ),
    )


def first_examples(data: DataSource, count: int) -> DataSource:
    """Return the data with only the first ``count`` training examples."""
    if count < 1:
        raise ConfError(f"{counted(count, 'example')} cannot be trained on; give at least 1")
    return dataclasses.replace(data, train=data.train.rows(0, min(count, data.train.num_examples)))
