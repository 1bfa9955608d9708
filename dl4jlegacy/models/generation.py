"""Text generation with a trained text model, one character or one word at a time.

Follows the sampling of Deeplearning4j's character modelling example: ``rnnTimeStep``, then a draw from the outputs. The
temperature is that of Ackley, Hinton, Sejnowski 1985, "A learning algorithm for Boltzmann machines".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.text.characters import LENGTH, one_hot_windows
from dl4jlegacy.datasets.text.texts import UNKNOWN, WORDS, TextReader
from dl4jlegacy.errors import ConfError, DataError, ModelError, counted
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.nn.layers.layer import (
    Bidirectional,
    Convolution1DLayer,
    GlobalPoolingLayer,
    GravesBidirectionalLSTM,
    Subsampling1DLayer,
    ZeroPadding1DLayer,
)
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork

__all__ = ["draw_class", "generate_text"]

logger = logging.getLogger(__name__)

_ACROSS_TIME = (
    Bidirectional,
    Convolution1DLayer,
    GlobalPoolingLayer,
    GravesBidirectionalLSTM,
    Subsampling1DLayer,
    ZeroPadding1DLayer,
)
"""Layers that read other time steps and carry no state that could replace these steps."""
_CLOSING, _OPENING = frozenset(".,;:!?)]}%\u2026\u00bb"), frozenset("([{\u00ab\u00bf\u00a1")
_TINY = float(np.finfo(np.float32).tiny)


def generate_text(
    model: TrainedModel, seed_text: str, *, length: int = 200, temperature: float = 1.0, seed: int = 123
) -> Iterator[str]:
    """Yield the text that a model generates after ``seed_text``: characters, or words with the space before them.

    ::

        model = load_model("shakespeare.zip")
        print("Shall I " + "".join(generate_text(model, "Shall I ", temperature=0.7)))

    Each is yielded as soon as it is drawn. The token at a position depends only on the model, ``seed_text``,
    ``temperature``, ``seed`` and the position: a longer text begins with the shorter one. ``UNKNOWN``, which stands for
    words outside the vocabulary, is never drawn. A stack of layers with recurrent state reads each token once
    (``rnn_time_step``); every other network reads the last tokens again, as many as a training example has. The network
    is in use until the last token is drawn, on the thread of the caller.

    Args:
        model: a model trained on text, see ``load_model``.
        seed_text: the beginning of the text; words outside the vocabulary count as ``UNKNOWN``.
        length: the number of characters, or words, to draw.
        temperature: 1 draws with the model's probabilities; a lower value favours probable tokens; a higher value makes
            all tokens more alike.
        seed: of the random draws.

    Raises:
        ModelError: the model is no text model, or does not have one name for each output.
        DataError: ``seed_text`` is empty, or has a character that the model does not know; names it.
        ConfError: ``temperature`` is not above 0, or ``length`` is below 1.
        NotFiniteError: an output is NaN or infinite.
    """
    if not 0 < temperature < math.inf:
        raise ConfError(f"temperature is {temperature}; it must be a finite number above 0")
    if length < 1:
        raise ConfError(f"length is {length}; at least 1 must be drawn")
    reader, names = _reader_of(model), model.label_names
    try:
        features = reader.features(seed_text, names)
    except DataError as exc:
        raise DataError(f"model {model.name} cannot go on with {seed_text[:40]!r}: {exc}") from exc
    stream = Stream.of(seed)

    def draw(position: int, probabilities: Array) -> int:
        uniform = stream.at(position, purpose="generate").generator().random()
        return draw_class(probabilities, temperature, float(uniform))

    drawn = (names[number] for number in _drawn(model, reader, features, length, draw))
    if not reader.has_words:
        return drawn
    _say_unknown(reader.words(seed_text), names)
    return _with_spaces(drawn, seed_text, reader)


def draw_class(probabilities: Array, temperature: float, uniform: float) -> int:
    """Return the class drawn by ``uniform`` in [0, 1) from probabilities ``(classes,)`` to the power ``1/temperature``.

    A probability of 0 counts as the smallest positive normal float32, so that some class is drawn at every temperature.
    No probability may be NaN: the network's outputs are checked before.
    """
    logs = np.log(np.maximum(np.asarray(probabilities, np.float64), _TINY))
    with np.errstate(over="ignore"):  # an overflowing term gets weight 0
        weights = np.exp((logs - logs.max()) / temperature)
    sums = np.cumsum(weights)
    return int(min(np.searchsorted(sums, uniform * sums[-1], side="right"), np.flatnonzero(weights)[-1]))


def _reader_of(model: TrainedModel) -> TextReader:
    """Return the reader of the model's texts; raises ``ModelError`` if the model is no text model."""
    if model.reading.text is None:
        raise ModelError(
            f"model {model.name} is no model of texts, and has none to go on with; train one: dl4j train FILE.txt "
            "--out model.zip (char-lstm, or with --tokens words word-lstm)"
        )
    names, n_out = model.label_names, model.network.n_out
    if not len(set(names)) == len(names) == n_out or set(names) <= {UNKNOWN}:
        what = "word" if model.reading.text.has_words else "character"
        raise ModelError(
            f"model file {model.name} is unusable: {counted(len(names), what)}, {len(set(names))} different, for "
            f"{counted(n_out, 'output')}; save it again with one for each"
        )
    return model.reading.text


def _say_unknown(words: Sequence[str], names: Sequence[str]) -> None:
    unknown = sorted(set(words) - set(names))
    if unknown:
        some = ", ".join(map(repr, unknown[:5])) + (" ..." if len(unknown) > 5 else "")
        logger.warning("%s not in the model's vocabulary: %s", counted(len(unknown), "word is", "words are"), some)


def _drawn(
    model: TrainedModel, reader: TextReader, features: Array, length: int, draw: Callable[[int, Array], int]
) -> Iterator[int]:
    """Yield the token numbers that follow ``features``; ``draw`` chooses one by position and probabilities."""
    names = model.label_names
    candidates = np.array([number for number, name in enumerate(names) if not (reader.has_words and name == UNKNOWN)])
    with one_thread():  # so that sums are rounded alike on any number of cores
        follow = _followers(model, reader)
        for position in range(length):
            number = int(candidates[draw(position, follow(features)[candidates])])
            yield number
            features = _features(reader, number, len(names))


def _features(reader: TextReader, number: int, size: int) -> Array:
    """Return one token as network input: a word as ``(1, 1, 1)``, a character as ``(1, size, 1)``."""
    if reader.has_words:
        return np.full((1, 1, 1), number, np.float32)
    return one_hot_windows(np.array([[number]]), size)


def _with_spaces(words: Iterable[str], seed_text: str, reader: TextReader) -> Iterator[str]:
    """Yield the words that follow a text, each with a space before it where one belongs."""
    before, ends_in_space = reader.words(seed_text)[-1], seed_text[-1].isspace()
    for word in words:
        yield word if ends_in_space or word in _CLOSING or before in _OPENING else f" {word}"
        before, ends_in_space = word, False


def _followers(model: TrainedModel, reader: TextReader) -> Callable[[Array], Array]:
    """Return a function from the tokens since its last call to the probabilities of the next token, ``(n_out,)``."""
    network = model.network
    if isinstance(network, MultiLayerNetwork) and not any(isinstance(x, _ACROSS_TIME) for x in network.layers):
        network.rnn_clear_previous_state()

        def step(features: Array) -> Array:
            found = to_host(network.rnn_time_step(model.normalize(DataSet(features)).features))
            return np.asarray(found[0, :, -1] if found.ndim == 3 else found[0])

        return step
    most, parts = WORDS if reader.has_words else LENGTH, list[Array]()

    def whole(features: Array) -> Array:
        parts.append(features)
        window = np.concatenate(parts, axis=2)[:, :, -most:]
        parts[:] = [window]
        found: Array = model.answer(np.ascontiguousarray(window))[0]
        return found

    return whole
