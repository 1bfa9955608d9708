"""``choose``: the values of a run that the user did not give, each with its reason, from counts of the data alone.

No choice depends on the number of workers or cores, or on measured time, so that the same command ends in the same bits
on any machine.

Source: Holzmueller, Grinsztajn and Steinwart, "Better by default", NeurIPS 2024, for the idea of tuned defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dl4jlegacy.datasets.images.image_transforms import ImageTransform
from dl4jlegacy.errors import counted
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.optimization.updaters import create_updater
from dl4jlegacy.scaleout.conf import USUAL_JOBS
from dl4jlegacy.scaleout.scoring import ValidationConf

__all__ = ["Choice", "Facts", "choose", "hidden_beside_lags", "training_seconds", "usual_model"]

_JOB_SECONDS = 0.01  # a batch should compute for so long that a round, of about 1 ms, is worth it
_MULTIPLY_ADDS = 2e10  # per second on one core, about
_ROUND_SECONDS = 1.0  # a round should not compute longer, so that little is done again if a worker is lost
_MOST_JOBS = 8
_VALIDATED_FROM, _FEWEST_VALIDATED = 1000, 50  # rows
_ROWS_OF_UNIT, _FEWEST_UNITS, _MOST_UNITS = 32, 2, 256  # of a network beside lags
_LARGE_IMAGES = 16  # pixels: smaller images suit a perceptron, and lose too much when they are turned and cropped


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a run's data and network, from which ``choose`` decides.

    Attributes:
        kind: of data: "" (rows of numbers, also images), "characters", "words" or "sequences".
        rows: training examples, validation included.
        image: channels, height and width; None: no images.
        multiply_adds: of the network for one example, forwards; 0: not known.
        can_validate: whether training rows can be split off, and the model be scored on them.
        has_classes: whether the labels are one class for each example.
        shares: whether the jobs of a round must be several, because the router or the data want that.
        has_lags: whether the features are lags of a series, and a regression begins at the last one.
    """

    kind: str
    rows: int
    image: tuple[int, int, int] | None = None
    multiply_adds: int = 0
    can_validate: bool = True
    has_classes: bool = False
    shares: bool = False
    has_lags: bool = False


class Choice(NamedTuple):
    """A chosen value, and why: the end of a sentence after the value."""

    value: Any
    reason: str

    def words(self) -> str:
        """Return the value and the reason as text."""
        value = f"{self.value.fraction:g}" if isinstance(self.value, ValidationConf) else self.value
        value = ",".join(map(str, value)) if isinstance(value, tuple) else value
        return f"{'none' if value is None else value}: {self.reason}"


class _Recipe(NamedTuple):
    """How a model is trained: for ``epochs`` epochs, but at least ``updates`` updates.

    Above ``rows`` training rows the epochs fall with the root of the rows, to ``least_epochs``. The rate is for batches
    of 32. Weights decay to 1/e in ``memory`` epochs at the full rate; 0: not at all. A model that ``shares`` may have
    several jobs in a round.
    """

    rate: float
    epochs: int
    updates: int
    batch: tuple[int, int]
    memory: int = 0
    rows: int = 10_000
    least_epochs: int = 8
    shares: bool = False


_RECIPES: Mapping[str, _Recipe] = {
    "mlp": _Recipe(1e-3, 20, 2000, (16, 256), memory=36, rows=100_000),
    "cnn": _Recipe(1e-3, 20, 2400, (32, 32), shares=True),
    "lstm": _Recipe(5e-3, 20, 1000, (16, 32)),
    "char-lstm": _Recipe(5e-3, 20, 800, (16, 32)),
    "word-lstm": _Recipe(5e-3, 10, 800, (16, 32)),
}
_OLD_RECIPES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "dbn": {"batch_size": (16, 128), "epochs": (30, 10), "pretrain_epochs": (10, 3)},
    "sda": {"batch_size": (16, 128), "epochs": (30, 10), "pretrain_epochs": (10, 3)},
    "lenet": {"batch_size": (16, 32), "epochs": (20, 5)},
    "alexnet-small": {"batch_size": (16, 32), "epochs": (20, 3)},
    "deep-autoencoder": {"batch_size": (16, 128), "epochs": (120, 15), "pretrain_epochs": (10, 1)},
    "vae": {"batch_size": (16, 128), "epochs": (1, 1), "pretrain_epochs": (120, 15)},
}
"""Fields of a Conf for data sets of ``_SMALL`` rows and of ``_LARGE`` rows, with ``USUAL_JOBS`` jobs a round."""
_SMALL, _LARGE = 2_000, 50_000


def training_seconds(multiply_adds: int) -> float:
    """Return about how long one core trains on examples of so many multiply-adds, counted forwards.

    An estimate from the count alone, and no measurement: the same everywhere.
    """
    return 3 * multiply_adds / _MULTIPLY_ADDS


def usual_model(kind: str, image: tuple[int, int, int] | None) -> str:
    """Return the model for data of a kind, which may be images of (channels, height, width)."""
    is_image = image is not None and min(image[1:]) >= _LARGE_IMAGES
    return "cnn" if is_image else zoo.select_for("", kind).name


def hidden_beside_lags(rows: int) -> Choice:
    """Return the hidden layers of a perceptron that learns what a regression on lags leaves, for so many rows.

    What is left is mostly noise, which a large network learns by heart from few rows.
    """
    units = min(max(rows // _ROWS_OF_UNIT, _FEWEST_UNITS), _MOST_UNITS)
    return Choice((units, units // 2), f"lags of a series, and {counted(rows, 'row')} to learn what they leave")


def choose(facts: Facts, given: Mapping[str, Any]) -> dict[str, Choice]:
    """Return what the user did not give, by name: fields of ``Conf`` and of ``NetworkOptions``.

    Args:
        facts: of the data and the network.
        given: what the user gave, by the same names.
    """
    found = {
        "model": Choice(usual_model(facts.kind, facts.image), _data_words(facts)),
        "validation": _validation(facts),
    }
    model = str(given.get("model", found["model"].value))
    if model == "mlp" and facts.has_lags:
        found["hidden"] = hidden_beside_lags(facts.rows)
    found |= _training(model, facts, found, given)
    if found["validation"].value is not None and "validation" not in given:
        found["validation"] = _in_whole_rounds(found, facts, given)
        found |= _training(model, facts, found, {"batch_size": found["batch_size"].value, **given})
    return {name: choice for name, choice in found.items() if name not in given}


def _training(model: str, facts: Facts, found: Mapping[str, Choice], given: Mapping[str, Any]) -> dict[str, Choice]:
    """Return how a model is trained on the rows that do not validate."""
    validation = given.get("validation", found["validation"].value)
    held = 0 if validation is None else round(validation.fraction * facts.rows)
    training: dict[str, Choice] = {}
    if model in _RECIPES:
        training = _by_recipe(_RECIPES[model], facts.rows - held, facts, given)
    elif model in _OLD_RECIPES:
        training = _between(_OLD_RECIPES[model], facts.rows)
    if model == "cnn" and facts.image is not None and min(facts.image[1:]) >= _LARGE_IMAGES:
        training["augment"] = Choice(ImageTransform(rotate=10, crop=2), "images are turned and moved a little")
    if "jobs_per_round" not in training:
        training["jobs_per_round"] = Choice(USUAL_JOBS, "the usual number, whatever the number of workers")
    return training


def _data_words(facts: Facts) -> str:
    """Return what the data are, as the reason for a model."""
    if facts.image is not None:
        return f"the data are images of {facts.image[1]}x{facts.image[2]}"
    words = {"": "rows of numbers", "characters": "text, read by characters", "words": "text, read by words"}
    return f"the data are {words.get(facts.kind, facts.kind)}"


def _validation(facts: Facts) -> Choice:
    """Return the part of the training rows that validates: a tenth of many rows, and none of few."""
    if not facts.can_validate:
        return Choice(None, "nothing can be split off to score the model")
    rows = min(facts.rows // 10, (facts.rows - _VALIDATED_FROM) // 5)
    if rows < _FEWEST_VALIDATED:
        return Choice(None, f"{counted(facts.rows, 'row')} are too few to spare some")
    return _validating(rows, facts)


def _validating(rows: int, facts: Facts) -> Choice:
    fraction = round(rows / facts.rows, 6)
    those = f"{facts.rows:,} rows, and of each class," if facts.has_classes else f"{facts.rows:,} rows"
    validation = ValidationConf(fraction=fraction, stratify=facts.has_classes)
    return Choice(validation, f"{fraction:.0%} of {those} choose the best epoch")


def _in_whole_rounds(found: Mapping[str, Choice], facts: Facts, given: Mapping[str, Any]) -> Choice:
    """Return the validation with what would be a short last round besides: it would count as much as a whole one.

    A short round of more than a twentieth of the rows stays.
    """
    known = {name: choice.value for name, choice in found.items()} | dict(given)
    held = round(known["validation"].fraction * facts.rows)
    left = (facts.rows - held) % (known["batch_size"] * known["jobs_per_round"])
    return _validating(held + left if left * 20 <= facts.rows else held, facts)


def _by_recipe(recipe: _Recipe, rows: int, facts: Facts, given: Mapping[str, Any]) -> dict[str, Choice]:
    """Return the training of a model with a recipe on so many training rows."""
    low, high = recipe.batch
    reason = f"near the root of {rows:,} rows, {low} to {high}" if low < high else "the size that suits the model"
    batch = Choice(_power_of_two(math.sqrt(rows), low, high), reason)
    size = int(given.get("batch_size", batch.value))
    batches = -(-rows // size)
    epochs = _epochs(recipe, rows, batches)
    jobs = _jobs(recipe, facts, facts.multiply_adds * size, epochs.value * batches)
    number = int(given.get("jobs_per_round", jobs.value))
    found = {"batch_size": batch, "epochs": epochs, "jobs_per_round": jobs}
    frequency = Choice(1, "the model is averaged after every batch")
    if number == 1 and "examples_per_update" not in given:
        most = max(1, int(_ROUND_SECONDS / max(1e-9, training_seconds(facts.multiply_adds * size))))
        frequency = Choice(min(batches, most), "with one job a round the result does not depend on it")
    rate = recipe.rate * math.sqrt(size / 32) * (1 if facts.shares else number)
    if not given.keys() & {"learning_rate", "updater"}:
        words = f" x {counted(number, 'job')}" if number > 1 and not facts.shares else ""
        found["learning_rate"] = Choice(float(f"{rate:.4g}"), f"{recipe.rate:g} x the root of {size} / 32{words}")
        if recipe.memory:
            decay = size / (rate * rows * recipe.memory)
            found["weight_decay"] = Choice(float(f"{decay:.4g}"), f"weights are forgotten in {recipe.memory} epochs")
    if hasattr(create_updater(given.get("updater", "adam")), "schedule"):
        found["schedule"] = Choice("linear", "the last third of a run brings the gain")
    return found | {"averaging_frequency": frequency}


def _epochs(recipe: _Recipe, rows: int, batches: int) -> Choice:
    """Return the number of epochs of a recipe."""
    usual = recipe.epochs
    if rows > recipe.rows:
        usual = max(recipe.least_epochs, round(usual * math.sqrt(recipe.rows / rows)))
    if usual * batches >= recipe.updates:
        return Choice(usual, f"{counted(usual * batches, 'batch', 'batches')} in all")
    return Choice(-(-recipe.updates // batches), f"{recipe.updates:,} updates")


def _jobs(recipe: _Recipe, facts: Facts, multiply_adds: int, batches: int) -> Choice:
    """Return the jobs of a round for batches with so many multiply-adds, so many in all epochs."""
    if facts.shares:
        return Choice(USUAL_JOBS, "the strategy needs several")
    seconds = training_seconds(multiply_adds)
    if not recipe.shares or seconds < _JOB_SECONDS:
        return Choice(1, "a batch is computed faster than workers agree on its result")
    if batches < 2 * recipe.updates:
        return Choice(1, f"{counted(batches, 'batch', 'batches')} are too few to share")
    most = _power_of_two(batches / (1.5 * recipe.updates), 2, _MOST_JOBS)
    jobs = _power_of_two(seconds / _JOB_SECONDS, 2, most)
    return Choice(jobs, "a batch computes long enough to be shared")


def _between(ends: Mapping[str, tuple[int, int]], rows: int) -> dict[str, Choice]:
    """Return a model's fields for so many rows, between those for a small and for a large data set."""
    low_root, root, high_root = (math.sqrt(math.sqrt(count)) for count in (_SMALL, rows, _LARGE))
    part = min(1.0, max(0.0, (root - low_root) / (high_root - low_root)))
    reason = f"between {_SMALL:,} and {_LARGE:,} rows by the model's own table"
    found = {name: Choice(round(low + (high - low) * part), reason) for name, (low, high) in ends.items()}
    low, high = ends["batch_size"]
    found["batch_size"] = Choice(_power_of_two(low + (high - low) * part, low, high), reason)
    few = max(1, min(10, 1000 // rows))  # an epoch of few examples has few updates
    found["epochs"] = Choice(found["epochs"].value * few, reason)
    return found | {"averaging_frequency": Choice(round(1 + 4 * part), reason)}


def _power_of_two(number: float, low: int, high: int) -> int:
    """Return the power of two that is nearest to a number, from ``low`` to ``high``, which are such powers."""
    found = low
    while found < high and number * number >= 2 * found * found:  # beyond the geometric mean of two powers
        found *= 2
    return found
