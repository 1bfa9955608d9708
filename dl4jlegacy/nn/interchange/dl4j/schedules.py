"""Schedules in Deeplearning4j's JSON: a policy beside the layer in 0.9.1, an object with a class in 1.0.0.

A new schedule needs only one entry in ``_KINDS`` to be written and read in both. ``MapSchedule`` has a map instead
of numbers, and is handled separately.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.interchange.dl4j.names import number, tagged
from dl4jlegacy.nn.optimization import schedules as s

__all__ = [
    "changes_tree",
    "known_schedule",
    "policy_tree",
    "read_changes",
    "read_policy",
    "read_schedule",
    "schedule_tree",
]

logger = logging.getLogger(__name__)

Tree = dict[str, Any]
_CLASSES: Final = "org.nd4j.linalg.schedule."
_DECAY, _POWER, _STEPS = "lrPolicyDecayRate", "lrPolicyPower", "lrPolicySteps"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A schedule: 0.9.1's policy, 1.0.0's class, and the keys of each of our fields, 0.9.1's first."""

    cls: Any
    policy: str
    name: str
    keys: dict[str, tuple[str, str]]

    def written(self, schedule: s.Schedule, *, old: bool) -> Tree:
        return {keys[not old]: getattr(schedule, field) for field, keys in self.keys.items()}

    def read(self, fields: Tree, where: str, *, old: bool) -> s.Schedule:
        values = {field: number(fields, keys[not old], 1.0, where) for field, keys in self.keys.items()}
        whole = {field: int(value) for field, value in values.items() if self.cls.__annotations__[field] == "int"}
        schedule: s.Schedule = self.cls(**values | whole)
        return schedule


_STEP: Final = {"decay_rate": (_DECAY, "decayRate"), "steps": (_STEPS, "step")}
_KINDS: Final = (
    # 1.0.0 has no TorchStepSchedule; a StepSchedule is equivalent except for steps=1
    _Kind(s.TorchStepSchedule, "TorchStep", "StepSchedule", _STEP),
    _Kind(s.StepSchedule, "Step", "StepSchedule", _STEP),
    _Kind(s.ExponentialSchedule, "Exponential", "ExponentialSchedule", {"gamma": (_DECAY, "gamma")}),
    _Kind(s.InverseSchedule, "Inverse", "InverseSchedule", {"gamma": (_DECAY, "gamma"), "power": (_POWER, "power")}),
    _Kind(s.SigmoidSchedule, "Sigmoid", "SigmoidSchedule", {"gamma": (_DECAY, "gamma"), "steps": (_STEPS, "stepSize")}),
    _Kind(
        s.PolySchedule,
        "Poly",
        "PolySchedule",
        {"power": (_POWER, "power"), "max_iterations": ("numIterations", "maxIter")},
    ),
)
_BY_CLASS: Final = {kind.cls: kind for kind in _KINDS}
_BY_POLICY: Final = {kind.policy: kind for kind in _KINDS}
_BY_NAME: Final = {kind.name: kind for kind in _KINDS}


def known_schedule(updater: Any) -> s.Schedule | None:
    """Return the schedule of an updater's rate, if it has one that Deeplearning4j has too."""
    schedule: s.Schedule | None = getattr(updater, "schedule", None)
    return None if isinstance(schedule, s.RunSchedule) else schedule


def policy_tree(schedule: s.Schedule | None) -> Tree:
    """Return the policy of 0.9.1 for a schedule of the learning rate; the values of a map are in the layer."""
    policy, own = "None", Tree()
    if isinstance(schedule, s.MapSchedule):
        policy = "Schedule"
    elif schedule is not None:
        policy, own = _BY_CLASS[type(schedule)].policy, _BY_CLASS[type(schedule)].written(schedule, old=True)
    return {"learningRatePolicy": policy, _DECAY: "NaN", _POWER: "NaN", _STEPS: "NaN"} | own


def schedule_tree(schedule: s.Schedule, base: float) -> Tree:
    """Return the object of 1.0.0 for a schedule with the base rate ``base``."""
    if isinstance(schedule, s.MapSchedule):
        return _object("MapSchedule", {"values": {"0": base, **changes_tree(schedule.values)}})
    kind = _BY_CLASS[type(schedule)]
    return _object(kind.name, {"initialValue": base, **kind.written(schedule, old=False)})


def _object(name: str, own: Tree) -> Tree:
    return {"@class": _CLASSES + name, "scheduleType": "ITERATION", **own}


def changes_tree(changes: s.Changes) -> Tree:
    """Return a map from iteration to value in the form of both versions."""
    return {str(start): value for start, value in changes.items()}


def read_changes(table: object, where: str) -> s.Changes:
    """Return a map from iteration to value; raises ``ModelError`` that names ``where``."""
    try:
        return {int(key): float(value) for key, value in table.items()}  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError) as exc:
        raise ModelError(f"{where} has a schedule that is no map from iteration to value") from exc


def read_policy(conf: Tree, body: Tree, where: str) -> s.Schedule | None:
    """Return the schedule for a policy of 0.9.1; None, and a warning in the log, for an unknown policy.

    Args:
        conf: a layer's ``NeuralNetConfiguration``, which has the policy.
        body: the layer in it, which has the values of a map.
        where: the place, for messages.
    """
    policy = str(conf.get("learningRatePolicy") or "None")
    if policy == "Schedule":
        return s.MapSchedule(values=read_changes(body.get("learningRateSchedule"), where))
    if policy in _BY_POLICY:
        return _BY_POLICY[policy].read(conf, where, old=True)
    if policy != "None":
        logger.warning("%s: learning rate policy %s is left out; training on would not use it", where, policy)
    return None


def read_schedule(node: Tree, where: str) -> tuple[float, s.Schedule | None]:
    """Return the base rate and the schedule of an object of 1.0.0; None, and a warning, for an unknown schedule."""
    short, fields = tagged(node, where)
    rate = number(fields, "initialValue", number(fields, "value", 0.1, where), where)
    if fields.get("scheduleType", "ITERATION") != "ITERATION":
        logger.warning("%s counts epochs and is left out; training on would use a fixed rate", where)
        return rate, None
    if short == "MapSchedule":
        table = read_changes(fields.get("values"), where)
        return table[min(table)] if table else rate, s.MapSchedule(values=table)
    if short in _BY_NAME:
        return rate, _BY_NAME[short].read(fields, where, old=False)
    if short != "FixedSchedule":
        logger.warning("%s: %s is left out; training on would use a fixed rate", where, short)
    return rate, None
