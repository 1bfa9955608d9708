"""The forms in which users may write a configuration's arguments: by position, as NumPy numbers, under other names.

The metaclass ``Described`` makes the configuration classes that users write. The usual forms work: ``DenseLayer(4)``,
``kernel_size=3``, ``activation="ReLU"``, ``loss="cross_entropy"``, lists instead of tuples. Everything else is an error
whose message says what to write.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.system.decoding import decodable

__all__ = ["ALIASES", "ArgumentError", "Described", "Tagged", "replaced", "resolve_name", "spelled"]

S = TypeVar("S", bound=msgspec.Struct)

ALIASES: dict[str, dict[str, str]] = {
    "activation": {
        "linear": "identity",
        "none": "identity",
        "silu": "swish",
        "logistic": "sigmoid",
        "hard_tanh": "hardtanh",
    },
    "loss": {
        "cross_entropy": "mcxent",
        "cross_entropy_loss": "mcxent",
        "categorical_cross_entropy": "mcxent",
        "softmax_cross_entropy": "mcxent",
        "log_loss": "mcxent",
        "sparse_categorical_cross_entropy": "sparse_mcxent",
        "binary_cross_entropy": "xent",
        "bce": "xent",
        "bce_loss": "xent",
        "nll": "negativeloglikelihood",
        "nll_loss": "negativeloglikelihood",
        "mean_squared_error": "mse",
        "mse_loss": "mse",
        "l1_loss": "mae",
        "kl_div": "kl_divergence",
        "kl_div_loss": "kl_divergence",
        "kld": "kl_divergence",
        "kullback_leibler_divergence": "kl_divergence",
        "cosine_similarity": "cosine_proximity",
        "mean_squared_log_error": "msle",
        "poisson_nll": "poisson",
    },
    "weight_init": {
        "glorot": "xavier",
        "glorot_normal": "xavier",
        "glorot_uniform": "xavier_uniform",
        "xavier_normal": "xavier",
        "he": "relu",
        "he_normal": "relu",
        "he_uniform": "relu_uniform",
        "kaiming": "relu",
        "kaiming_normal": "relu",
        "kaiming_uniform": "relu_uniform",
        "zeros": "zero",
        "one": "ones",
        "eye": "identity",
    },
    "updater": {
        "nesterov": "nesterovs",
        "gradient_descent": "sgd",
        "stochastic_gradient_descent": "sgd",
        "no_op": "none",
    },
    "pooling_type": {"average": "avg", "mean": "avg", "maximum": "max", "p_norm": "pnorm"},
    "convolution_mode": {"valid": "truncate"},
    "mode": {"ave": "average", "mean": "average", "sum": "add", "concatenate": "concat", "multiply": "mul"},
    "op": {"sum": "add", "mul": "product", "multiply": "product", "sub": "subtract", "mean": "average"},
    "dtype": {"float": "float32", "single": "float32", "double": "float64"},
    "backprop_type": {"tbptt": "truncated_bptt", "bptt": "standard"},
}
"""For each field: other frameworks' names of its values, and our names. (``gate_activation`` is an ``activation``.)"""

_FIELDS = {
    "n_out": "units out_features out_channels filters num_units num_outputs n_outputs hidden_size output_dim size nout",
    "n_in": "in_features in_channels input_dim input_size num_inputs n_inputs nin",
    "kernel_size": "kernel filter_size pool_size kernel_shape",
    "stride": "strides",
    "padding": "pad",
    "dilation": "dilation_rate dilations",
    "activation": "act activation_fn activation_function nonlinearity",
    "weight_init": "init kernel_initializer initializer weight_initializer",
    "bias_init": "bias_initializer",
    "drop_out": "dropout dropout_rate drop_rate rate keep_prob p",
    "learning_rate": "lr eta step_size",
    "l2": "weight_decay",
    "loss": "loss_fn loss_function criterion objective",
    "updater": "optimizer optimiser",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "epsilon": "eps",
    "eps": "epsilon",
    "batch_size": "batch batchsize split",
    "epochs": "num_epochs n_epochs",
    "workers": "num_workers n_workers",
    "conf": "configuration",
}
"""Our names of fields, and the names in other frameworks."""

_NOTES = {
    "drop_out": " (the share of values that is kept: 0.8 drops a fifth)",
    "n_out": " (the number of units or channels)",
}


class ArgumentError(ConfError, TypeError):
    """An argument that a configuration does not have, or of a wrong type; the message says what to write."""


class Described(msgspec.StructMeta):
    """The metaclass of configurations: reads the arguments of a constructor call, and checks their types.

    In a class, ``positional`` names the fields that may be given by position (None: all, in their order), and
    ``repeated`` names the fields for which one number stands for several equal ones, and how many. Decoding and
    ``replace`` bypass the metaclass, and are strict.
    """

    positional: tuple[str, ...] | None = None
    repeated: Mapping[str, int] = MappingProxyType({})

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Described:
        """Return a class with frozen objects and keyword-only fields."""
        return super().__new__(mcls, name, bases, namespace, **{"frozen": True, "kw_only": True, **config})

    def __call__(cls, *values: Any, **fields: Any) -> Any:  # the object is a class: this is its metaclass
        """Return a new object; raises ``ArgumentError`` for unknown or wrong arguments."""
        given = {**_by_position(cls, values, fields), **fields}
        known = cls.__struct_fields__
        for name, value in given.items():
            if name not in known:
                raise ArgumentError(f"{cls.__name__} has no field {name!r}{_meant(name, known)}")
            given[name] = _checked(cls, name, _plain(value))
        missing = [name for name in _required(cls) if name not in given]
        if missing:
            raise ArgumentError(f"{cls.__name__} needs {' and '.join(missing)}: {cls.__name__}({missing[0]}=...)")
        return super().__call__(**given)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Tagged(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, metaclass=Described
):
    """Base of configuration parts of several kinds, which ``type`` distinguishes in the text form."""

    positional: ClassVar[tuple[str, ...] | None] = None

    def title(self) -> str:
        """Return the kind, for messages."""
        return str(self.__struct_config__.tag)

    def resolve(self, field: str, known: Collection[str], like: str = "") -> None:
        """Replace the name in ``field`` by its spelling in ``known``; see ``resolve_name``."""
        resolve_name(self, self.title(), field, known, like)


def replaced(conf: S, changes: Mapping[str, Any]) -> S:
    """Return a copy of a configuration with some fields changed; raises ``ArgumentError`` for an unknown field."""
    known = conf.__struct_fields__
    for name in changes:
        if name not in known:
            raise ArgumentError(f"{type(conf).__name__} has no field {name!r}{_meant(name, known)}")
    return msgspec.structs.replace(conf, **changes)


def _by_position(cls: Any, values: tuple[Any, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the positional arguments set."""
    places: tuple[str, ...] = cls.__struct_fields__ if cls.positional is None else cls.positional
    if places[:2] == ("n_out", "activation") and len(values) > 1 and not isinstance(values[1], str):
        raise ArgumentError(
            f"{cls.__name__}{_plain(values)}: two sizes need their names: {cls.__name__}(n_in=..., n_out=...)"
        )
    given = dict(zip(places, values, strict=False))
    twice = [name for name in given if name in fields]
    if len(values) > len(places) or twice:
        own = [name for name, kind in vars(cls).get("__annotations__", {}).items() if "ClassVar" not in str(kind)]
        example = ", ".join(f"{name}=..." for name in places or own[:1] or ["drop_out"])
        most = f"at most {len(places)} ({', '.join(places)})" if places else "none"
        again = f", and {twice[0]} by name too" if twice else ""
        raise ArgumentError(
            f"{cls.__name__} takes {most} of its values by position, {len(values)} are given{again}; name them: "
            f"{cls.__name__}({example})"
        )
    return given


def _meant(name: str, known: Iterable[str]) -> str:
    """Return a hint for error messages: the field that ``name`` probably means."""
    known = tuple(known)
    key = _key(name)
    for ours, theirs in _FIELDS.items():
        if ours in known and key in [_key(other) for other in (ours, *theirs.split())]:
            return f"; did you mean {ours!r}{_NOTES.get(ours, '')}?"
    return nearest(name, known)


def _plain(value: Any) -> Any:
    """Return a value in Python's own types: NumPy numbers become numbers, lists and arrays become tuples."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def _checked(cls: Any, name: str, value: Any) -> Any:
    """Return a field's value; raises ``ArgumentError`` for a wrong type.

    One number becomes a tuple of equal numbers if the field is in ``repeated``.
    """
    count: int = cls.repeated.get(name, 0)
    if count and isinstance(value, int) and not isinstance(value, bool):
        value = (value,) * count
    kind = _hints(cls)[name]
    if kind is int and isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if get_origin(kind) is tuple and isinstance(value, msgspec.Struct):
        value = (value,)
    is_name = get_origin(kind) is Literal or kind is str or str in get_args(kind)
    if name == "updater" or (is_name and (isinstance(value, str) or not isinstance(value, int | float | None))):
        return value  # a name may have several spellings; the object itself resolves it
    try:
        if isinstance(value, dict) and get_origin(kind) is not dict:
            raise msgspec.ValidationError("Expected no dict")
        msgspec.convert(value, decodable(kind))
    except msgspec.ValidationError as exc:
        classes = [each.__name__ for each in _classes(kind)]
        hint = f"; give {count} whole numbers, or one for all" if count > 1 else ""
        if kind is int:
            hint = "; give one whole number"
        if classes:
            hint = f"; give a {classes[0]}(...)" + (f", or {', '.join(classes[1:])}" if classes[1:] else "")
        raise ArgumentError(f"{cls.__name__}: {name} is {value!r}: {_first_words(exc)}{hint}") from exc
    return value


def _classes(kind: Any) -> list[type]:
    """Return the classes in a type annotation."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [found for part in get_args(kind) for found in _classes(part)]


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


@functools.cache
def _required(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields without a default."""
    nothing = msgspec.NODEFAULT
    fields = msgspec.structs.fields(cls)
    return tuple(field.name for field in fields if field.default is nothing and field.default_factory is nothing)


def _first_words(exc: Exception) -> str:
    words = re.sub(r" - at `\$[^`]*`", "", str(exc)).replace("`", "").replace(" | null", "")
    return words.replace("Expected", "expected").replace("array", "several values")


def _key(name: str) -> str:
    """Return a name in lower case and without word separators."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def spelled(name: str, known: Collection[str], field: str) -> str | None:
    """Return the name in ``known`` that equals ``name`` up to case and separators; None if there is none."""
    keys = {_key(theirs): ours for theirs, ours in ALIASES.get(field, {}).items()}
    keys |= {_key(ours): ours for ours in known}
    found = keys.get(_key(name))
    return found if found in known else None


def resolve_name(struct: Any, title: str, field: str, known: Collection[str], like: str = "") -> None:
    """Replace the name in a field of a frozen struct by its spelling in ``known``; None stays None.

    Args:
        struct: the owner of the field; for use in ``__post_init__``.
        title: the struct's title for the message.
        field: the field's name.
        known: the allowed names.
        like: the field whose aliases (``ALIASES``) apply; "": ``field`` itself.

    Raises:
        ConfError: the name matches none of them; the message has the nearest.
    """
    given = getattr(struct, field)
    if given is None or (isinstance(given, str) and given in known):
        return
    if not isinstance(given, str):
        raise ConfError(f"{title}: {field} is {given!r}; give a name: {', '.join(sorted(known))}")
    found = spelled(given, known, like or field)
    if found is None:
        raise ConfError(f"{title}: unknown {field} {given!r}{nearest(given.lower(), tuple(known))}")
    msgspec.structs.force_setattr(struct, field, found)
