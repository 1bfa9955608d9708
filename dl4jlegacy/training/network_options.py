"""What the user of a new run says about its network, and the network with that."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.optimization.schedules import CosineSchedule, LinearSchedule, RunSchedule
from dl4jlegacy.nn.optimization.updaters import Adam, AdamW, Updater, create_updater, with_learning_rate

__all__ = ["NONE_GIVEN", "SCHEDULES", "NetworkOptions", "run_schedule", "trained_by", "with_options"]

_Network = TypeVar("_Network", bound=NetworkConfiguration)

SCHEDULES: dict[str, type[RunSchedule] | None] = {"constant": None, "linear": LinearSchedule, "cosine": CosineSchedule}
"""The valid names for ``--schedule``."""


class NetworkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says about the network of a new run; None: not given.

    Attributes:
        updater: its name in ``UPDATERS``.
        learning_rate: the base rate of the updater.
        schedule: of the rate, see ``run_schedule``.
        weight_decay: that of AdamW, which then takes Adam's place.
        drop_out: Deeplearning4j's: the part of the hidden units that is *kept* in training; 0 and 1: no drop-out.
        hidden: sizes of the hidden layers of a model of the zoo.
    """

    updater: str | None = None
    learning_rate: float | None = None
    schedule: str | None = None
    weight_decay: float | None = None
    drop_out: float | None = None
    hidden: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.updater is not None:
            create_updater(self.updater)
        if self.schedule is not None:
            run_schedule(self.schedule)

    def given(self) -> dict[str, Any]:
        """Return what was given, by name."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not None}

    def for_builder(self) -> dict[str, Any]:
        """Return the arguments for the builder of a model of the zoo."""
        fields = {name: value for name, value in self.given().items() if name in ("drop_out", "hidden")}
        return fields | ({"drop_out": 0.0} if self.drop_out == 1 else {})


NONE_GIVEN = NetworkOptions()


def run_schedule(text: str) -> RunSchedule | None:
    """Return the schedule called ``constant`` (None), ``linear`` or ``cosine``, or ``cosine:0.05`` with a warm-up.

    Raises:
        ConfError: there is no such schedule, or the warm-up is no part of a run.
    """
    name, colon, part = text.partition(":")
    if name not in SCHEDULES:
        raise ConfError(f"unknown schedule {name!r}{nearest(name, tuple(SCHEDULES))}")
    kind = SCHEDULES[name]
    if not colon:
        return None if kind is None else kind()
    if kind is None:
        raise ConfError(f"schedule {text!r}: a constant rate has no warm-up; give constant, or cosine:{part}")
    try:
        return kind(warm_up=float(part))
    except (ConfError, ValueError) as exc:
        raise ConfError(
            f"schedule {text!r}: {part!r} is no part of a run, from 0 to below 1, for its warm-up; give for instance "
            f"{name}:0.05"
        ) from exc


def trained_by(updater: Updater, options: NetworkOptions) -> Updater:
    """Return ``updater`` with what the options say of it.

    Raises:
        ConfError: the updater has no learning rate, or lets no weights decay.
    """
    if options.updater is not None:
        updater = create_updater(options.updater)
    updater, decay = with_learning_rate(updater, options.learning_rate), options.weight_decay
    if isinstance(updater, AdamW) and decay is not None:
        updater = msgspec.structs.replace(updater, weight_decay=decay)
    elif type(updater) is Adam and decay:
        fields = {name: getattr(updater, name) for name in updater.__struct_fields__}
        updater = AdamW(**fields, weight_decay=decay)
    elif decay:
        raise ConfError(
            f"the weight decay is {decay:g}, and {type(updater).__name__} has none; leave it out, or give --updater "
            "adamw"
        )
    if options.schedule is None:
        return updater
    if not hasattr(updater, "schedule"):
        raise ConfError(
            f"the schedule is {options.schedule!r}, and {type(updater).__name__} has no learning rate; leave it out, "
            "or take an updater that has one"
        )
    return msgspec.structs.replace(updater, schedule=run_schedule(options.schedule))


def with_options(network: _Network, options: NetworkOptions, *, model: str = "") -> _Network:
    """Return a network with everything that the options say of it.

    Args:
        network: as the builder of a model of the zoo returned it for ``options.for_builder()``, or a given one.
        options: what the user says.
        model: the name of the model; "": the network is given layer by layer.

    Raises:
        ConfError: an option does not fit the network; the message says what to do.
    """
    if not model:
        _check_given(options)
    elif options.drop_out is not None and isinstance(network, MultiLayerConfiguration):
        network = _with_drop_out(network, options.for_builder()["drop_out"], model)
    if not network.backprop and options.schedule is not None and run_schedule(options.schedule) is not None:
        raise ConfError(
            f"the schedule is {options.schedule!r}, and the network is only pretrained, where the rate is constant; "
            "leave it out"
        )
    conf = network.conf.replace(updater=trained_by(network.conf.updater, options))
    return msgspec.structs.replace(network, conf=conf)


def _check_given(options: NetworkOptions) -> None:
    """Raise ``ConfError`` if an option for models of the zoo meets a network that is given layer by layer."""
    sizes = None if options.hidden is None else ",".join(map(str, options.hidden))
    for flag, value, field in (("--hidden", sizes, "n_out"), ("--drop-out", options.drop_out, "drop_out")):
        if value is not None:
            raise ConfError(
                f"{flag} {value} is for ready models, and the network of this run is given layer by layer; write "
                f"{field} into its layers, or give a --model in its place"
            )


def _with_drop_out(network: Any, kept: float, model: str) -> Any:
    """Return a network with drop-out before its last layer, also for regression, and none before its first one."""
    first, *others = network.layers
    if kept and not others:
        raise ConfError(f"drop-out is {kept:g}, and model {model!r} has no hidden units to drop; leave it out")
    if "drop_out" not in first.unused:
        first = msgspec.structs.replace(first, drop_out=0.0)
    if others:
        others[-1] = msgspec.structs.replace(others[-1], drop_out=kept)
    return network.replace(layers=(first, *others))
