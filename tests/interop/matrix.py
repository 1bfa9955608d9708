"""Runs all networks through the real Deeplearning4j, both ways, and writes what came out as a table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.nn.interchange.dl4j.versions import Version
from dl4jlegacy.nn.optimization.updaters import Sgd
from tests.interop import ours, ours_combined, random_theirs, theirs, theirs_combined
from tests.interop.compare import SAME, outputs, verdict
from tests.interop.real_dl4j import VERSIONS, Answer, Arrays, RealDl4j, Refused

SHAPES: dict[str, Version] = {"0.9.1": "0.9.1", "1.0.0-M2.1": "1.0.0"}
NOT_COMPARED = "one step further is not compared: 0.9.1 takes another one"
PLAIN = "with plain gradient descent the two differ"
ROUNDED = "one step further is not compared: its updater makes steps of rounding"
UNTRAINED = "one step further is not compared: Deeplearning4j cannot train it"
ANSWERS_OTHERWISE = (
    "draws the slopes of rrelu in prediction too",
    "turns masked sequences around with their padding",
)
"""What a warning says of faults of Deeplearning4j's own, for which a network may answer otherwise there."""


@dataclass(frozen=True)
class Result:
    """Result for one network in one direction; ``warned`` are the warnings about it."""

    row: str
    name: str
    found: str
    warned: tuple[str, ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether the two answer or train differently without a warning."""
        if self.found.startswith("outputs differ"):
            return not any(said in warning for said in ANSWERS_OTHERWISE for warning in self.warned)
        return self.found.startswith(PLAIN) or (" differ" in self.found and not self.warned)

    @property
    def sign(self) -> str:
        """The entry in the table."""
        if self.found == SAME:
            return "same"
        if self.found.startswith("refused"):
            return "refused"
        if self.found.startswith("theirs"):
            return "-"
        if self.found.startswith("one step") and not self.is_wrong:
            return "answers alike"
        return "WRONG" if self.is_wrong else "differs"


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def _warnings() -> Iterator[list[str]]:
    handler, logger = _Warnings(), logging.getLogger("dl4jlegacy")
    logger.addHandler(handler)
    try:
        yield handler.said
    finally:
        logger.removeHandler(handler)


def from_theirs(
    real: RealDl4j, cases: Iterable[theirs.Theirs], scratch: Path, *, drawn: bool = False
) -> Iterator[Result]:
    """Yield, for networks that Deeplearning4j builds, trains and saves, what this package makes of the file.

    Networks that it can build but not train are saved as they begin. Of networks that are ``drawn`` at random a step
    counts as the same if it is with plain gradient descent: some updaters make whole steps of what rounding leaves of a
    gradient that is all but 0.
    """
    for number, case in enumerate(cases):
        path, arrays = scratch / f"theirs-{number}.zip", case.arrays()
        step = case.one_more_step and (real.version != "0.9.1" or case.is_plain)
        untrained = ""
        try:
            answer, untrained = _built(real, case, arrays, path, step=step)
        except Refused as exc:
            yield Result(case.row, case.name, f"theirs: {exc}")
            continue
        with _warnings() as said:
            try:
                network = restore_model(path, input_types=_images(case.inputs))
            except Dl4jError as exc:
                yield Result(case.row, case.name, f"refused: {str(exc).partition('unusable: ')[2]}")
                continue
            finally:
                path.unlink()
        found = verdict(network, answer, arrays)
        if found == SAME and case.one_more_step and not step:
            found = NOT_COMPARED if (plain := _plain_step(real, case, path)) == SAME else f"{PLAIN}: {plain}"
        if drawn and found.startswith("one step") and step and not said and _plain_step(real, case, path) == SAME:
            found = ROUNDED
        yield Result(case.row, case.name, found if found != SAME else untrained or SAME, tuple(said))


def _built(real: RealDl4j, case: theirs.Theirs, arrays: Arrays, path: Path, *, step: bool) -> tuple[Answer, str]:
    """Return what Deeplearning4j made of a network, and why nothing was trained, "" if it was."""
    try:
        return real.build(case.network, arrays, save=path, steps=case.steps, step=step), ""
    except Refused as exc:
        if not case.steps:
            raise
        answer = real.build(case.network, arrays, save=path)
        if any(y.shape != each.shape for y, each in zip(answer.outputs, arrays["l"], strict=True)):
            raise  # a network that mixes up its own examples
        return answer, f"{UNTRAINED}: {exc}"


_UPDATING = {
    "updater",
    "learningRate",
    "regularization",
    "l1",
    "l2",
    "l1Bias",
    "l2Bias",
    "gradientNormalization",
    "gradientNormalizationThreshold",
}


def _plain_step(real: RealDl4j, case: theirs.Theirs, path: Path) -> str:
    """Return whether a network trains alike once it is trained with plain gradient descent, without penalties."""
    calls = [call for call in case.network["calls"] if call[0] not in _UPDATING]
    is_old = real.version == "0.9.1"
    updater = [["updater", "SGD"], ["learningRate", 0.05]] if is_old else [["updater", theirs.new("Sgd", 0.05)]]
    network = {**case.network, "calls": [*updater, *calls]}
    arrays = case.arrays()
    answer = real.build(network, arrays, save=path, steps=case.steps, step=True)
    restored = restore_model(path, input_types=_images(case.inputs))
    path.unlink()
    return verdict(restored, answer, arrays)


def _our_plain_step(real: RealDl4j, case: ours.Ours, path: Path) -> str:
    """Return the same of a network of this package; SAME if none of its steps are compared."""
    if not case.one_more_step or not case.conf.conf.minimize:
        return SAME
    nothing = dict.fromkeys(("l1", "l2", "l1_bias", "l2_bias"), 0.0)
    whole = case.conf.conf.replace(updater=Sgd(learning_rate=0.1), gradient_normalization="none", **nothing)
    conf = case.conf.replace(conf=whole)
    if isinstance(conf, MultiLayerConfiguration):
        layers = tuple(msgspec.structs.replace(layer, updater=None) for layer in conf.layers)
        conf = conf.replace(layers=layers)
    network, arrays = replace(case, conf=conf).trained()
    write_model(network, path, dl4j_version=SHAPES[real.version])
    return verdict(network, real.load(path, arrays, step=True), arrays)


def from_ours(real: RealDl4j, cases: Iterable[ours.Ours], scratch: Path) -> Iterator[Result]:
    """Yield, for networks of this package, what Deeplearning4j makes of them, and what comes back from it."""
    for number, case in enumerate(cases):
        path, again = scratch / f"ours-{number}.zip", scratch / f"again-{number}.zip"
        network, arrays = case.trained()
        with _warnings() as said:
            try:
                write_model(network, path, dl4j_version=SHAPES[real.version])
            except Dl4jError as exc:
                yield Result(case.row, case.name, f"refused: {exc}")
                continue
        plain = real.version != "0.9.1" or not any("behind the updater" in each for each in said)
        try:
            answer = real.load(path, arrays, save=again, step=case.one_more_step and plain)
            found = verdict(network, answer, arrays)
            if found == SAME:
                found = _come_back(path, again, arrays, answer.outputs, case)
            if found == SAME and not plain:
                found = NOT_COMPARED if (step := _our_plain_step(real, case, path)) == SAME else f"{PLAIN}: {step}"
        except Refused as exc:
            found = f"Deeplearning4j refuses: {exc}"
        yield Result(case.row, case.name, found, tuple(said))


def _come_back(path: Path, again: Path, arrays: Arrays, answered: list[np.ndarray], case: ours.Ours) -> str:
    """Compare what comes back from both files: the one written here, and the one that Deeplearning4j saved."""
    for file in (path, again):
        back = restore_model(file, input_types=_images(case.inputs) if file is again else ())
        for i, (mine, other) in enumerate(zip(outputs(back, arrays), answered, strict=True)):
            where = np.ones(mine.shape, bool)
            if "fm" in arrays and mine.ndim == 3:
                where = np.broadcast_to(arrays["fm"][0][:, None, :] > 0, mine.shape)
            if not np.allclose(mine[where], other[where], rtol=1e-5, atol=1e-5):
                return f"outputs differ when it comes back: output {i}"
    return SAME


def _images(inputs: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Return the input type of networks for images, which is not in their files."""
    if len(inputs) != 1 or len(inputs[0]) != 3:
        return []
    channels, height, width = inputs[0]
    return [InputType.convolutional(height, width, channels)]


def random_cases(version: str, count: int) -> Iterator[theirs.Theirs]:
    """Yield random networks of Deeplearning4j's, each from its number."""
    return (random_theirs.draw(number, version) for number in range(count))


def their_cases(version: str) -> list[theirs.Theirs]:
    """Return the networks that a version of Deeplearning4j can build."""
    found = [*theirs.everything(), *theirs_combined.combined()]
    named = [replace(case, name=f"{case.row}: {case.name}" if case.name != case.row else case.name) for case in found]
    return [case for case in named if version in case.versions]


def our_cases() -> Iterator[ours.Ours]:
    """Yield all networks of this package."""
    yield from ours.everything()
    yield from ours_combined.combined()


def table(results: dict[tuple[str, str], list[Result]]) -> str:
    """Return the table of all layers and functions; ``results`` are by direction and version."""
    columns = [("ours", version) for version in VERSIONS] + [("theirs", version) for version in VERSIONS]
    rows = sorted({row_of(result) for each in results.values() for result in each})
    lines = ["| | " + " | ".join(f"{'to' if way == 'ours' else 'from'} {version}" for way, version in columns) + " |"]
    lines.append("| --- |" + " --- |" * len(columns))
    for row in rows:
        cells = [cell([r for r in results[column] if row_of(r) == row]) for column in columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def row_of(result: Result) -> str:
    """Return the row of the table: both sides' names of a function are one, in lower case as here."""
    head, _, name = result.row.partition(" ")
    return f"{head} {name.lower()}" if head in ("Activation", "Loss", "Updater") else result.row


def cell(found: list[Result]) -> str:
    """Return the table's entry for the networks of one row, direction and version."""
    signs = [result.sign for result in found if result.sign != "-"]
    if not signs:
        return "-"
    counted = {sign: signs.count(sign) for sign in dict.fromkeys(signs)}
    return signs[0] if len(counted) == 1 else ", ".join(f"{sign} {count}" for sign, count in counted.items())
