"""A trained network with its normalizer and label names, and its evaluation on examples that it has not seen.

A network that learned to reconstruct its input has no accuracy; its loss is reported instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.datasets import DataSet, DataSource, load
from dl4jlegacy.datasets.batches import Batch, Data, epochs_of
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.dataset import frame_names
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.normalizers import as_read
from dl4jlegacy.datasets.reading import UNREAD, Reading, place_of
from dl4jlegacy.datasets.tables.data_frames import FrameColumns
from dl4jlegacy.datasets.tables.header import warn_of_unknown
from dl4jlegacy.datasets.tables.pandas_index import header_names
from dl4jlegacy.datasets.tables.svmlight_files import MOST_COLUMNS
from dl4jlegacy.datasets.tables.table_files import column_names
from dl4jlegacy.datasets.tables.text_rows import is_number
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.unseen_words import UnseenWords
from dl4jlegacy.errors import DataError, ModelError, ShapeError, counted
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.verdicts import verdict_on
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.batch_evaluation import (
    ROWS,
    NetworkEvaluation,
    evaluate_batches,
    example_scores,
    is_classified,
    merge_evaluations,
)
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_with_reading
from dl4jlegacy.nn.interchange.modelimport.keras import KerasModelImport
from dl4jlegacy.nn.interchange.modelimport.keras_file import is_keras
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network, input_type_of
from dl4jlegacy.storage import paths as storage

__all__ = [
    "ANSWERS_AT",
    "SPLITS",
    "NetworkEvaluation",
    "TrainedModel",
    "answers_in",
    "evaluate_model",
    "evaluate_network",
    "read_model",
    "score_examples",
    "source_for_model",
    "with_features_as_labels",
]

SPLITS = ("test", "train", "all")
"""The parts of a data set that a model can be evaluated on."""


def with_features_as_labels(examples: DataSet) -> DataSet:
    """Return the examples with their features as labels, for a network that learns to reconstruct its input."""
    return DataSet(examples.features, examples.features, examples.features_mask, examples.features_mask)


def source_for_model(source: DataSource, model: str) -> DataSource:
    """Return the data set with the labels that a zoo model learns: the features, if the model ``reconstructs``."""
    if model not in zoo.ZOO or not zoo.ZOO[model].reconstructs:
        return source
    train, test = with_features_as_labels(source.train), with_features_as_labels(source.test)
    return dataclasses.replace(source, train=train, test=test)


def evaluate_network(
    network: Network,
    examples: DataSet,
    label_names: tuple[str, ...],
    *,
    batch_size: int = ROWS,
    label_scale: LabelScale | None = None,
) -> NetworkEvaluation:
    """Evaluate ``network`` on ``examples``; there are no classification metrics if labels equal features.

    Args:
        network: a ``MultiLayerNetwork`` or ``ComputationGraph``.
        examples: at least one.
        label_names: the names of the outputs.
        batch_size: examples per batch.
        label_scale: of the predicted numbers, in whose units their errors are.

    Raises:
        NotFiniteError: a loss or an output is not finite; names the row.
    """
    batches, classifies = examples.batch_by(batch_size), is_classified(network.conf, examples)
    with one_thread():  # as in workers: more threads could round sums differently
        parts = list(
            evaluate_batches(network, batches, classifies=classifies, batch_size=batch_size, label_scale=label_scale)
        )
    return merge_evaluations(parts, label_names).in_units(label_scale, label_names)


def score_examples(network: Network, examples: DataSet) -> Iterator[Array]:
    """Yield the loss of each example, ``ROWS`` at a time; see ``example_scores``, which also lists the errors."""
    for index, batch in enumerate(examples.batch_by(ROWS)):
        with one_thread():
            scores = example_scores(network, batch, first=index * ROWS)
        yield scores


Evaluate = Callable[..., NetworkEvaluation]
"""``evaluate_network``, or a function that computes the same result with several workers."""


def evaluate_model(
    model: TrainedModel,
    dataset: str,
    data_dir: str = "",
    *,
    split: str = "test",
    evaluate: Evaluate = evaluate_network,
    then: Callable[[Network, DataSet], None] = lambda network, examples: None,
) -> tuple[NetworkEvaluation, dict[str, Any]]:
    """Evaluate a model on a part of a data set.

    Args:
        model: as ``load_model`` returns it.
        dataset, data_dir: as ``datasets.load`` takes them, or in S3.
        split: the part, one of ``SPLITS``.
        evaluate: the function that evaluates.
        then: called afterwards with the network and the examples, which have the labels to learn and are scaled.

    Returns:
        the evaluation, and the report's JSON object.

    Raises:
        DataError: the data set cannot be read.
        ShapeError: the data set does not fit the model.
    """
    network, place = model.network, place_of(model.reading.local(dataset))
    if model.reading.transform is not None and model.reading.reader is None:
        _warn_of_columns(place.tables, model.reading.transform)
    source = load(
        place,
        data_dir=storage.local(data_dir) or None,
        reading=model.reading,
        n_classes=network.n_out,
        columns=model.network.n_in if model.is_sparse else 0,
        rounded=False,
    )
    parts = {"test": (source.test,), "train": (source.train,), "all": (source.train, source.test)}[split]
    examples = model.as_read(DataSet.merge(parts) if len(parts) > 1 else parts[0])
    model.check_width(examples.n_in, dataset)
    if not network.conf.backprop or (network.n_out == examples.n_in != examples.n_out):
        examples = with_features_as_labels(examples)
    elif examples.n_out != network.n_out:
        raise ShapeError(
            f"model {model.name} has {counted(network.n_out, 'output')}, "
            f"data set {dataset} {counted(examples.n_out, 'class', 'classes')}; "
            "is it the right data set?"
        )
    examples = model.normalize(examples)
    evaluation = evaluate(network, examples, source.label_names, label_scale=model.reading.label_scale)
    then(network, examples)
    verdict = verdict_on(evaluation, network.conf, source.train, examples, source.reading)
    fields = {
        "model": model.name,
        "dataset": dataset,
        "split": split,
        "examples": examples.num_examples,
        **evaluation.fields(full=True),
        **verdict.fields(),
    }
    return evaluation, fields


def _warn_of_columns(tables: Sequence[Path], schema: TransformProcess) -> None:
    """Warn of table columns that the schema does not know and therefore ignores.

    The warning is given here because large tables may not be read a second time.
    """
    known = {column.name for column in schema.columns}
    for path in tables:
        names = column_names(path, known)
        if not known.isdisjoint(names):
            warn_of_unknown((name for name in names if name not in known), str(path))


ANSWERS_AT = ("output", "last step", "each step")
"""Places of the answers in a network's outputs: the output itself, the last time step of a sequence, or each step."""


def answers_in(outputs: Array, place: str) -> Array:
    """Return the answers in a network's outputs, ``(answers, n_out)``; ``place`` is one of ``ANSWERS_AT``."""
    if outputs.ndim != 3 or place == "output":
        return outputs
    if place == "each step":
        return np.ascontiguousarray(outputs.transpose(0, 2, 1)).reshape(-1, outputs.shape[1])
    return np.ascontiguousarray(outputs[:, :, -1])


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained network with its normalizer and label names, as ``load_model`` returns it.

    Attributes:
        network: a ``MultiLayerNetwork`` or ``ComputationGraph``. Used directly, it takes features scaled as in
            training.
        reading: how its data were read, scaled and named.
        name: its name in messages, for instance the path of its file.
    """

    network: Network
    reading: Reading = UNREAD
    name: str = "the model"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the outputs; () if they have none."""
        return self.reading.label_names

    def answer(self, features: Any) -> Array:
        """Return the answer for each example, ``(examples, n_out)``: the outputs.

        A text model answers with the outputs after the last word or character. A sequence model answers at each time
        step, ``(examples * time steps, n_out)``, unless it learned one class per sequence. Args and errors as for
        ``output``.
        """
        return answers_in(self.output(features), self.answers_at)

    @property
    def answers_at(self) -> str:
        """The place of the answers in the model's outputs, one of ``ANSWERS_AT``."""
        return self.reading.kind.answers_at(self.reading.reader)

    def answers(self, features: Array) -> int:
        """Return the number of answers for some examples."""
        return len(features) * (int(features.shape[2]) if self.answers_at == "each step" else 1)

    def output(self, features: Any) -> Array:
        """Return the outputs, ``(examples, n_out)`` on the host, for features as the data came, before any scaling.

        A classifier's outputs are the probabilities of its classes. In a data frame (pandas, Polars, Arrow), or a
        ``DataSet`` made from one, columns are found by name, as in a table; the label column is not needed. A model
        with a ``transform`` takes such columns, or arrays of the features that its transform makes
        (``transform.features``), or, where these are more, arrays of the columns of a table of numbers. It answers
        in the units of the label.

        Raises:
            ShapeError: the model takes other features. NotFiniteError: an output is NaN or infinite; names its row.
            DataError: a column is missing, or a cell of a data frame is no number; names it.
        """
        examples = self.examples_of(features)
        return self.in_label_units(np.asarray(to_host(self.network.output(self.normalize(examples).features))))

    @property
    def predicts_numbers(self) -> bool:
        """Whether the outputs are predicted numbers; without ``transform`` and ``sequences`` they are classes."""
        return self.reading.label_scale is not None

    def in_label_units(self, outputs: Array) -> Array:
        """Return the network's outputs in the units of the numbers that it predicts."""
        return outputs if self.reading.label_scale is None else self.reading.label_scale.in_units(outputs)

    def predict(self, features: Any) -> Array:
        """Return the number of the most probable class of each example, ``(examples,)``; errors as for ``output``.

        ``label_names`` holds the names of the classes. A multi-label model returns 0 or 1 for each label,
        ``(examples, labels)``.
        """
        return self.classes_in(self.output(features))

    def classes_in(self, outputs: Array) -> Array:
        """Return the classes of examples with these outputs, in the form of ``predict``."""
        if self.reading.is_multi_label:
            return (outputs > 0.5).astype(np.intp)
        classes: Array = outputs.argmax(axis=1)
        return classes

    def evaluate(self, examples: Data) -> Evaluation:
        """Return the classification metrics on examples as they came, before any scaling; errors as for ``output``.

        The examples are a data set, batches as ``network.evaluate`` takes them, or a data frame with a label column.
        """
        if frame_names(examples):
            examples = self._labelled(examples)
        names = self.label_names if len(self.label_names) == self.network.n_out else None
        batches = (self._normalized(batch) for batch in epochs_of(examples))
        found: Evaluation = self.network.evaluate(batches, label_names=names)
        return found

    def _normalized(self, batch: Batch) -> Batch:
        if isinstance(batch, DataSet):
            batch = self.examples_of(batch)
        return batch if self.reading.normalizer is None else self.reading.normalizer.transform(batch)  # type: ignore[arg-type]

    def examples_of(self, features: Any, what: str = "the given data") -> DataSet:
        """Return features, a data frame or a data set as unscaled examples with the network's columns.

        Errors as for ``output``; ``what`` names the examples in messages.
        """
        schema = self.reading.schema
        names = () if schema is None or isinstance(features, DataSet) else self._names_in(frame_names(features))
        if schema is not None and names:
            found = self._of_columns(schema, names, features)
        else:
            found = self._in_order(features if isinstance(features, DataSet) else DataSet(features))
            if schema is not None and self._are_cells(schema, found):
                cells = dict(zip(self.reading.feature_columns, found.features.T, strict=True))
                found = DataSet(self._of_columns(schema, tuple(cells), cells).features, found.labels)
        self.check_width(found.n_in, what)
        return found

    def _names_in(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return a data frame's column names, or () if its columns go by position.

        Names that include all of the model's columns always count. Other names do not count if one of them is a number,
        or if all column names of the model are numbers.
        """
        known = self.reading.feature_columns
        if not known or set(header_names(names, known)) >= set(known):
            return names
        return () if any(map(is_number, names)) or all(map(is_number, known)) else names

    def _in_order(self, examples: DataSet) -> DataSet:
        """Return a data set with its named columns in the model's order; unnamed columns are left as they are."""
        schema = self.reading.schema
        if schema is None or not (names := self._names_in(examples.columns)):
            return examples
        columns = dict(zip(names, examples.features.T, strict=True))
        found = self._of_columns(schema, names, columns)
        return DataSet(found.features, examples.labels, labels_mask=examples.labels_mask)

    def _are_cells(self, schema: TransformProcess, found: DataSet) -> bool:
        """Return whether unnamed features are columns of a table of numbers, from which the schema makes more."""
        columns, width = self.reading.feature_columns, found.n_in
        if found.features.ndim != 2 or width != len(columns) or input_type_of(self.network).fits_columns(width):
            return False
        return self.reading.has_numbers_alone

    def _of_columns(self, schema: TransformProcess, names: tuple[str, ...], columns: Any) -> DataSet:
        rows = _frame(schema, names, columns, set(self.reading.feature_columns))
        table = _table_of(schema, rows, labelled=False)
        unseen = UnseenWords()
        x = schema.exact_features(table, new_rows=True, unseen=unseen)
        unseen.say(table.name)
        if self.reading.transform is None:  # as if the same columns had come as an array
            return DataSet(x.astype(rows.dtype))
        return self.as_read(DataSet(x))

    def _labelled(self, frame: Any) -> DataSet:
        """Return a data frame with a column of labels as examples; raises ``DataError`` if it has none."""
        schema, names = self.reading.schema, frame_names(frame)
        if schema is None or not schema.label_columns:
            raise DataError(
                f"model {self.name} does not know the names of its columns, nor which is the label; give a DataSet of "
                "features and labels"
            )
        rows = _frame(schema, names, frame, {column.name for column in schema.columns})
        return self.as_read(schema.data_set(_table_of(schema, rows, labelled=True)))

    def as_read(self, examples: DataSet) -> DataSet:
        """Return float64 examples rounded as the training data were before these were scaled."""
        return as_read(self.reading.normalizer, examples)

    def rows_as_read(self, rows: Array) -> Array:
        """Return float64 feature rows, rounded like the examples of ``as_read``."""
        found: Array = self.as_read(DataSet(rows)).features
        return found

    def normalize(self, examples: DataSet) -> DataSet:
        """Return examples in the column order that the network takes, scaled as its training data."""
        examples = self._in_order(examples)
        return examples if self.reading.normalizer is None else self.reading.normalizer.transform(examples)

    def output_names(self, n_in: int) -> tuple[str, ...]:
        """Return the names of the predicted columns, or else ``class_names``; errors as for ``class_names``."""
        if not (self.predicts_numbers or self.reading.is_multi_label):
            return self.class_names(n_in)
        names, n_out = self.label_names, self.network.n_out
        scales = n_out if self.reading.label_scale is None else len(self.reading.label_scale.stds)
        if len(names) not in (0, n_out) or scales != n_out:
            raise ModelError(
                f"model file {self.name} is unusable: {counted(len(names), 'label name')}, {scales} with a scale, for "
                f"{counted(n_out, 'output')}; save it again with one for each"
            )
        return names or tuple(map(str, range(n_out)))

    def class_names(self, n_in: int) -> tuple[str, ...]:
        """Return a name for each output; outputs without names are numbered.

        A network that reconstructs its ``n_in`` inputs gets numbers too: the names in its file are the classes of its
        data, not its outputs.

        Raises:
            ModelError: the network classifies, and does not have one distinct name for each output.
        """
        names, n_out, last = self.label_names, self.network.n_out, self.network.layers[-1]
        if names and len(set(names)) == len(names) == n_out:
            return names
        rebuilds = n_out == n_in and getattr(last, "activation", "") != "softmax"
        if not names or not self.network.conf.backprop or rebuilds:
            return tuple(map(str, range(n_out)))
        raise ModelError(
            f"model file {self.name} is unusable: {counted(len(names), 'label name')}, {len(set(names))} different, "
            f"for {counted(n_out, 'output')}; save it again with one name for each"
        )

    @property
    def is_sparse(self) -> bool:
        """Whether the model learned from sparse features: it has more columns than any table."""
        return isinstance(self.network, MultiLayerNetwork) and self.network.n_in > MOST_COLUMNS

    def check_width(self, n_in: int, what: str) -> None:
        """Raise ``ShapeError`` unless examples with ``n_in`` features fit; sparse examples may have fewer."""
        if self.is_sparse and n_in <= self.network.n_in:
            return
        if not input_type_of(self.network).fits_columns(n_in):
            raise ShapeError(
                f"model {self.name} takes {counted(self.network.n_in, 'feature')}, {what} has {n_in}; is it the right "
                "data set?"
            )


def _frame(schema: TransformProcess, names: tuple[str, ...], columns: Any, wanted: Collection[str]) -> FrameColumns:
    """Return the wanted columns of a data frame, typed as the schema reads them."""
    are_classes = not (schema.regression or schema.multi_label)
    words = {column.name for column in schema.columns if column.type == "category"}
    words |= set(schema.label_columns) if are_classes else set()
    return FrameColumns.of("the data frame", names, columns, wanted, words)


def _table_of(schema: TransformProcess, found: FrameColumns, *, labelled: bool) -> Table:
    """Return columns in memory as a table for the schema; warn of columns that the schema does not know."""
    return Table.merge(list(schema.blocks(found, found.name, rows=ROWS, labelled=labelled, warns=True)))


def read_model(path: str, kernels: Kernels | None = None) -> TrainedModel:
    """Return the model in a local or S3 file, also one written by Keras; errors as for ``restore_model``."""
    file = storage.local(path)
    if is_keras(file):
        imported = KerasModelImport.import_keras_model_and_weights(file, kernels=kernels)
        return TrainedModel(imported, name=path)
    if storage.is_onnx(file):
        raise ModelError(
            f"{path} is an ONNX file by its name; these are written, for other programs such as onnxruntime, and not "
            "read: give the model, or the folder of checkpoints, that it was made of"
        )
    network, reading = restore_with_reading(file, kernels=kernels)
    return TrainedModel(network, reading, path)
