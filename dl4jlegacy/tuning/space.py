"""The search space: fields of a ``Conf`` by their paths, each with a range or a list of choices; checked when read.

A path begins with a field of the Conf (``batch_size``), of its network (``layers[0].n_out``), or of the network's
shared settings (``updater.learning_rate``); each may also be written in full (``multi_layer_conf.layers[0].n_out``).
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from dl4jlegacy.errors import ConfError, Dl4jError, nearest
from dl4jlegacy.nn.conf.text import decode_json, decode_yaml, encode_json
from dl4jlegacy.nn.optimization.updaters import create_updater
from dl4jlegacy.scaleout.conf import FREE_FIELDS, Conf
from dl4jlegacy.system import files
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.strict_json import to_json

__all__ = ["Choices", "Dimension", "Range", "SearchSpace", "read_search"]

_FIXED = (FREE_FIELDS - {"epochs"}) | {
    *(
        "seed",
        "transform",
        "images",
        "augment",
        "text",
        "sequences",
        "keep_index",
        "stratify",
        "class_weights",
        "validation",
        "early_stopping",
        "performer",
        "performer_args",
        "multi_layer_clazz",
    ),
    *("mixed_devices", "precision", "first_epoch", "first_iteration"),
}
"""Fields of a Conf that a search must not vary: they change the data, a trial's score, or where the trial runs."""
_SEGMENT = re.compile(r"([A-Za-z_]\w*)|\[(\d+)\]")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\[\d+\]|\.[A-Za-z_]\w*)*")
_YAML = (".yaml", ".yml")
_NETWORKS = ("multi_layer_conf", "computation_graph_conf")
_EXAMPLE = "updater.learning_rate: {low: 1e-4, high: 1e-1, log: true}"

Keys = tuple[str | int, ...]


class Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers from ``low`` to ``high``, both included; ``step`` apart, or uniform in the logarithm."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None


class Choices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JSON values: strings, numbers, or whole objects."""

    choices: list[Any]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One field of the search.

    Attributes:
        path: as the user wrote it; ``keys``: its place in the Conf's JSON.
        space: the possible values.
        distribution: Optuna's distribution for them; choices that are objects are drawn as their JSON.
    """

    path: str
    keys: Keys
    space: Range | Choices
    distribution: BaseDistribution

    def value(self, drawn: Any) -> Any:
        """Return the JSON value for a value drawn by Optuna."""
        if isinstance(self.space, Range):
            return drawn
        return next(choice for choice in self.space.choices if _label(choice) == drawn)

    def drawn(self, value: Any) -> Any:
        """Return Optuna's value for a JSON value; None if it is not in the space."""
        if isinstance(self.space, Choices):
            choices = (choice for choice in self.space.choices if _is_choice(self.keys, choice, value))
            return next(map(_label, choices), None)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        low, high, step = self.space.low, self.space.high, self.space.step
        steps = 0.0 if step is None else (value - low) / step
        return value if low <= value <= high and math.isclose(steps, round(steps), abs_tol=1e-9) else None


class SearchSpace:
    """The fields that a search varies; immutable.

    Attributes:
        dimensions: the fields, outer before inner ones; empty before ``fitted_to``.
    """

    def __init__(self, written: Mapping[str, Range | Choices], dimensions: Sequence[Dimension] = ()) -> None:
        self._written, self.dimensions = dict(written), tuple(dimensions)

    @classmethod
    def of(cls, written: Any) -> SearchSpace:
        """Return the space for a map from paths to ``{low, high, log, step}``, ``{choices}`` or a list of choices.

        Raises:
            ConfError: not such a map, or a range is empty; names the path.
        """
        if not isinstance(written, Mapping) or not written:
            raise ConfError(f"search is {written!r}; give fields by path, such as {_EXAMPLE}")
        return cls({str(path): _space(str(path), given) for path, given in written.items()})

    def to_json(self) -> str:
        """Return canonical JSON: equal for equal spaces."""
        return to_json({path: msgspec.to_builtins(self._written[path]) for path in sorted(self._written)})

    def fitted_to(self, conf: Conf, check: Callable[[Conf], Any]) -> SearchSpace:
        """Return the space with all paths looked up in ``conf``, which has a network, and limits and choices tested.

        Args:
            check: raises ``ConfError`` for a Conf that cannot be trained.

        Raises:
            ConfError: an unknown path (names the nearest), or a value that is invalid for the field.
        """
        raw = _plain(conf)
        keys = {path: _keys(path, raw) for path in self._written}
        order = sorted(keys, key=lambda path: (len(keys[path]), path))  # an updater before its learning rate
        for one, other in itertools.combinations(order, 2):
            if keys[one] == keys[other]:
                raise ConfError(f"search.{one} and search.{other} are the same field; leave one out")
        found: list[Dimension] = []
        for path in order:
            outer = [d for d in found if isinstance(d.space, Choices) and keys[path][: len(d.keys)] == d.keys]
            chosen = itertools.product(*(d.space.choices for d in outer if isinstance(d.space, Choices)))
            bases = [_with(raw, {d.keys: c for d, c in zip(outer, values, strict=True)}) for values in chosen]
            found.append(_dimension(path, keys[path], self._written[path], _Trier(path, keys[path], bases, check)))
        return SearchSpace(self._written, found)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions by path."""
        return {d.path: d.distribution for d in self.dimensions}

    def start(self, conf: Conf) -> dict[str, Any] | None:
        """Return Optuna's values for the unchanged ``conf``; None if it is not in the space."""
        raw = _plain(conf)
        found = {d.path: d.drawn(_at(raw, d.keys)) for d in self.dimensions}
        if any(value is None for value in found.values()):
            return None
        return found if self.apply(conf, found) == conf else None

    def values(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON values by path for Optuna's values."""
        return {d.path: d.value(drawn[d.path]) for d in self.dimensions}

    def apply(self, conf: Conf, drawn: Mapping[str, Any]) -> Conf:
        """Return ``conf`` with the drawn values; raises ``ConfError`` if they are invalid together."""
        return _decoded(_with(_plain(conf), {d.keys: d.value(drawn[d.path]) for d in self.dimensions}))


def read_search(path: Path) -> tuple[Conf, frozenset[str], SearchSpace]:
    """Return the Conf in a JSON or YAML file, the names of the fields set in it, and its section ``search``.

    Raises:
        ConfError: the file cannot be read, or the section is missing or wrong; names the file.
    """
    with files.errors_as(ConfError, f"{path} cannot be read"):
        text = files.read(files.expand(path))
    decode = decode_yaml if path.suffix in _YAML else decode_json
    try:
        raw = decode(text, dict[str, Any])
        if "search" not in raw:
            raise ConfError(f"there is no section search; give fields by path, such as search: {{{_EXAMPLE}}}")
        written = raw.pop("search")
        return decode(to_json(raw), Conf), frozenset(raw), SearchSpace.of(written)
    except Dl4jError as exc:
        raise ConfError(f"{path}: {str(exc).removeprefix('dict: ')}") from exc


def _space(path: str, given: Any) -> Range | Choices:
    """Return the range or the choices that a user wrote for a path; raises ``ConfError``."""
    where = f"search.{path}"
    if not _PATH.fullmatch(path):
        raise ConfError(
            f"{where} is no path of a field; write it like batch_size, layers[0].n_out or updater.learning_rate"
        )
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {"choices": list(given)}
    if not isinstance(given, Mapping):
        raise ConfError(f"{where} is {given!r}; give {{low: ..., high: ...}}, or a list of choices")
    kind: Any = Choices if "choices" in given else Range
    for name in given:
        if name not in kind.__struct_fields__:
            raise ConfError(f"{where} has an unknown field {name!r}{nearest(str(name), kind.__struct_fields__)}")
    try:  # YAML reads 1e-4 as a string
        space: Range | Choices = msgspec.convert(dict(given), type=decodable(kind), strict=False)
    except msgspec.ValidationError as exc:
        raise ConfError(f"{where}: {exc}") from exc
    return _checked_choices(where, space) if isinstance(space, Choices) else _checked_range(where, space)


def _checked_choices(where: str, space: Choices) -> Choices:
    choices = [_number(choice) for choice in space.choices]
    if not choices:
        raise ConfError(f"{where} has no choices; give some, such as [16, 32, 64]")
    labels = [_label(choice) for choice in choices]
    twice = next((label for at, label in enumerate(labels) if label in labels[:at]), None)
    if twice is not None:
        raise ConfError(f"{where} has the choice {twice!r} twice")
    return Choices(choices=choices)


def _checked_range(where: str, space: Range) -> Range:
    low, high, step = space.low, space.high, space.step
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfError(f"{where} goes from {low} to {high}; both must be finite")
    if not low < high:
        raise ConfError(f"{where} is empty: low is {low} and high is {high}; low must be less than high")
    if space.log and low <= 0:
        raise ConfError(f"{where} has log and low {low}; a logarithm needs a low above 0")
    if space.log and step is not None:
        raise ConfError(f"{where} has log and step {step}; leave one of them out")
    if step is not None and not 0 < step <= high - low:
        raise ConfError(f"{where} has step {step}; from {low} to {high} it must be above 0, and at most {high - low:g}")
    if step is not None and not math.isclose((high - low) / step, round((high - low) / step), abs_tol=1e-9):
        raise ConfError(f"{where} goes from {low} to {high}, which is no multiple of step {step}; change one of them")
    return space


def _number(choice: Any) -> Any:
    """Return a choice; a string that YAML made of a number, such as 1e-4, becomes that number."""
    if not isinstance(choice, str) or choice[:1] not in tuple("+-.0123456789"):
        return choice
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(choice)
    return choice


def _label(choice: Any) -> Any:
    """Return Optuna's form of a choice: plain values unchanged, others as their JSON."""
    return choice if choice is None or isinstance(choice, bool | int | float | str) else to_json(choice)


@dataclass(frozen=True, slots=True)
class _Trier:
    """Tests values of a field in combination with each choice of outer fields, e.g. of the updater for its rate."""

    path: str
    keys: Keys
    bases: list[dict[str, Any]]
    check: Callable[[Conf], Any]

    def try_value(self, value: Any) -> None:
        """Raise ``ConfError`` if the value is invalid for the field."""
        for base in self.bases:
            try:
                self.check(_decoded(_with(base, {self.keys: value})))
            except ConfError as exc:
                raise ConfError(f"search.{self.path} cannot be {value!r}: {str(exc).removeprefix('Conf: ')}") from exc

    def takes(self, value: Any) -> bool:
        """Return whether the value is valid for the field."""
        try:
            self.try_value(value)
        except ConfError:
            return False
        return True


def _dimension(path: str, keys: Keys, space: Range | Choices, trier: _Trier) -> Dimension:
    if isinstance(space, Choices):
        for choice in space.choices:
            trier.try_value(choice)
        return Dimension(path, keys, space, CategoricalDistribution([_label(choice) for choice in space.choices]))
    low, high, step = space.low, space.high, space.step
    trier.try_value(low)
    trier.try_value(high)
    broken = low + min(0.5, (high - low) / 2)
    if broken == int(broken):
        broken += min(0.25, (high - low) / 4)
    if trier.takes(broken):
        return Dimension(path, keys, space, FloatDistribution(low, high, log=space.log, step=step))
    if step is not None and not isinstance(step, int):
        raise ConfError(f"search.{path} has step {step}; the field takes whole numbers only")
    whole = IntDistribution(int(low), int(high), log=space.log, step=1 if step is None else int(step))
    return Dimension(path, keys, space, whole)


def _plain(conf: Conf) -> dict[str, Any]:
    return decode_json(encode_json(conf), dict[str, Any])


def _decoded(raw: dict[str, Any]) -> Conf:
    return decode_json(to_json(raw), Conf)


def _keys(path: str, raw: Mapping[str, Any]) -> Keys:
    """Return the place of a path in a Conf's JSON; raises ``ConfError`` if its first field is not searchable."""
    keys: Keys = tuple(name or int(index) for name, index in _SEGMENT.findall(path))
    network = next(name for name in _NETWORKS if raw[name] is not None)
    shared = raw[network].get("conf") or {}
    if keys[0] in _FIXED:
        raise ConfError(
            f"search.{path}: {keys[0]} is the same for all trials; search the network, batch_size or epochs"
        )
    if keys[0] in raw:
        return keys
    if keys[0] in raw[network]:
        return (network, *keys)
    if keys[0] in shared:
        return (network, "conf", *keys)
    known = sorted({*raw, *raw[network], *shared} - _FIXED)
    raise ConfError(f"search.{path}: unknown field {keys[0]!r}{nearest(str(keys[0]), known)}")


def _at(raw: Any, keys: Keys) -> Any:
    """Return the value at a place of a Conf's JSON; None if there is none."""
    for key in keys:
        inside = (
            key in raw if isinstance(raw, dict) else isinstance(raw, list) and isinstance(key, int) and key < len(raw)
        )
        if not inside:
            return None
        raw = raw[key]
    return raw


def _resolved(keys: Keys, value: Any) -> Any:
    """Return the JSON of a choice; an updater may be given by name."""
    if keys[-1] == "updater" and isinstance(value, str):
        return msgspec.to_builtins(create_updater(value), str_keys=True)
    return value


def _is_choice(keys: Keys, choice: Any, value: Any) -> bool:
    """Return whether the value in a Conf's JSON equals a choice; for an updater's name, whether its kind is equal."""
    resolved = _resolved(keys, choice)
    if resolved is not choice and isinstance(value, Mapping):
        return bool(resolved["type"] == value.get("type"))
    return bool(resolved == value)


def _with(raw: Mapping[str, Any], changes: Mapping[Keys, Any]) -> dict[str, Any]:
    """Return a copy of a Conf's JSON with changes applied in order; raises ``ConfError`` for a missing place."""
    whole = copy.deepcopy(dict(raw))
    for keys, value in changes.items():
        here: Any = whole
        for at, key in enumerate(keys):
            is_last = at == len(keys) - 1
            where = ".".join(map(str, keys[:at]))
            if isinstance(key, int):
                if not isinstance(here, list) or key >= len(here):
                    size = len(here) if isinstance(here, list) else 0
                    raise ConfError(f"{where} has no [{key}]; it has {size}, counted from 0")
            elif not isinstance(here, dict) or not (is_last or key in here):
                known = nearest(key, sorted(map(str, here))) if isinstance(here, dict) else ""
                raise ConfError(f"{where} has no {key!r} to look into{known}")
            if is_last:
                here[key] = _resolved(keys, copy.deepcopy(value))
            else:
                here = here[key]
    return whole
