"""Parts of people's own programs, by name: how a ``Conf`` can say what its jobs need.

A ``Conf`` comes from outside, so what it names is never imported. A part is registered under its name in the process
that uses it: by ``register_performer`` or ``register_router`` in a module which that process imports anyway or was told
to (``dl4j worker --use MODULE``), or as an entry point of a package that is installed there, in the group
``dl4jlegacy.performers`` or ``dl4jlegacy.routers``.

Legacy: ``Configuration`` held the names of classes, which whoever read it instantiated.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from dl4jlegacy.errors import ConfError, Dl4jError, MissingPartError, UsageError, nearest
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout import strategies
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.contract import check_router
from dl4jlegacy.scaleout.state.code_digest import module_digest
from dl4jlegacy.scaleout.state.own_parts import check_callable, name_of, told
from dl4jlegacy.scaleout.strategies import WorkRouter
from dl4jlegacy.scaleout.workers.perform import CheckedPerformer, WorkerPerformer
from dl4jlegacy.system.exits import error_text, exits_as_errors

__all__ = [
    "PERFORMERS",
    "ROUTERS",
    "PartRegistry",
    "PerformerFactory",
    "RouterFactory",
    "checked",
    "find_performer",
    "find_router",
    "import_parts",
    "register_performer",
    "register_router",
    "used_modules",
]

PerformerFactory = Callable[[Conf, Kernels], WorkerPerformer]
"""Makes a worker's own performer, of the run's Conf (with the performer's arguments) and the kernels."""
RouterFactory = Callable[[Conf], WorkRouter]
"""Makes a router, of the run's Conf (with the router's arguments)."""
F = TypeVar("F", bound=Callable[..., Any])

_USED: dict[str, str] = {}
_OWN = "dl4jlegacy."
"""So begin the names of the package's own performers, which nobody has to look for."""


class PartRegistry:
    """The parts of one kind that this process has, by name.

    Args:
        kind: what they are called in messages.
        group: of the entry points by which installed packages offer them.
        built_in: the names of the package's own.
    """

    def __init__(self, kind: str, group: str, built_in: Collection[str] = ()) -> None:
        self.kind, self.group, self._built_in = kind, group, built_in
        self.parts: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Return a decorator that registers a part under a name; errors as for ``register_performer``."""
        if not name or not name.isprintable():
            raise ConfError(f"a {self.kind} cannot be registered as {name!r}; give it a name of printable characters")
        if name in self._built_in:
            raise ConfError(
                f"a {self.kind} called {name!r} is there already, the package's own; give yours another name"
            )

        def register(factory: F) -> F:
            if not callable(factory):
                raise ConfError(f"{self.kind} {name!r} is {type(factory).__name__}; register a class or function")
            known = self.parts.setdefault(name, factory)
            if known is not factory:
                if _origin(known) != _origin(factory):  # the same one again is a module that was imported again
                    raise ConfError(
                        f"two {self.kind}s are called {name!r}: {_origin(known)} and {_origin(factory)}; give one of "
                        "them another name"
                    )
                self.parts[name] = factory
            return factory

        return register

    def find(self, name: str, wanted_by: str) -> Callable[..., Any]:
        """Return the part of a name that is registered in this process, or offered by an installed package.

        Args:
            name: as the Conf gives it.
            wanted_by: what needs it, to begin a message with.

        Raises:
            MissingPartError: there is none. ConfError: two packages offer it.
        """
        if name in self.parts:
            return self.parts[name]
        offered = list(entry_points(group=self.group))
        here = [entry for entry in offered if entry.name == name]
        if len(here) > 1:
            places = " and ".join(sorted(entry.value for entry in here))
            raise ConfError(
                f"{wanted_by} needs the {self.kind} {name!r}, which is in {places}: remove one of these packages"
            )
        if not here:
            everybody = {*self._built_in, *self.parts, *(entry.name for entry in offered)}
            known = sorted(name for name in everybody if not name.startswith(_OWN))
            what = f"registered here: {', '.join(known)}" if known else "none is registered here"
            raise MissingPartError(
                f"{wanted_by} needs the {self.kind} {name!r}, which this process does not have ({what}); start it with "
                f"--use and the module that registers it (dl4j worker --use MODULE), or install its package"
                f"{nearest(name, known) if known else ''}"
            )
        return self.parts.setdefault(name, self._load(here[0], wanted_by))

    def _load(self, entry: EntryPoint, wanted_by: str) -> Callable[..., Any]:
        try:
            with exits_as_errors():
                factory: Callable[..., Any] = entry.load()
        except Exception as exc:
            raise MissingPartError(
                f"{wanted_by} needs the {self.kind} {entry.name!r}, and {entry.value} cannot be imported: "
                f"{error_text(exc)}"
            ) from exc
        if not callable(factory):
            raise MissingPartError(f"{wanted_by} needs the {self.kind} {entry.name!r}, and {entry.value} is none")
        return factory


PERFORMERS = PartRegistry("performer", "dl4jlegacy.performers")
ROUTERS = PartRegistry("router", "dl4jlegacy.routers", strategies.STRATEGIES)


def register_performer(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a performer, a class or a function, under the name that a Conf gives it.

    ::

        @register_performer("word-count")
        class WordCountPerformer:
            def __init__(self, conf, kernels): ...

    Raises:
        ConfError: the name is empty, or that of another performer.
    """
    return PERFORMERS.register(name)


def register_router(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a router, a class or a function of the Conf, under its name in ``Conf.router``.

    The master and all workers of a run need it: its methods are pure functions, from which each finds out for itself
    which jobs are open. What it needs besides is in ``Conf.router_args``.

    Raises:
        ConfError: the name is empty, or that of another router.
    """
    return ROUTERS.register(name)


def find_performer(name: str, wanted_by: str) -> PerformerFactory:
    """Return the performer of a name; args and errors as for ``PartRegistry.find``."""
    return PERFORMERS.find(name, wanted_by)


def find_router(conf: Conf) -> WorkRouter:
    """Return the router of a run.

    Raises:
        MissingPartError: this process does not have it.
        ConfError: its options are not allowed, or it has no messages for the mesh of the Conf.
    """
    router = _router(conf)
    has_messages = router.memory is not None and router.log_every > 0
    if conf.void_configuration is not None and not has_messages:
        raise ConfError(
            f"Conf.void_configuration is given with router {conf.router} and router_args {conf.router_args}, and no "
            "messages of these are pushed from worker to worker; leave it out, or take gradient-sharing in rounds"
        )
    if not conf.average_updater_state and router.memory is not None:
        raise ConfError(
            f"Conf.average_updater_state is false, and with router {conf.router} updater states stay in their slots "
            "and are never averaged; leave it out"
        )
    return router


def _router(conf: Conf) -> WorkRouter:
    if conf.router in strategies.BUILT_IN:
        kind: Any = strategies.BUILT_IN[conf.router]
        # Devices that round differently cannot do each other's jobs again.
        has_choice = any(field.name == "state_every" for field in dataclasses.fields(kind))
        unlike = {"state_every": 1} if conf.mixed_devices and has_choice else {}
        return strategies.create_router(
            conf.router,
            {**conf.router_args, **unlike},
            window=conf.window,
            jobs_per_round=conf.jobs_per_round or conf.workers,
            weighted_average=conf.weighted_average,
        )
    make = ROUTERS.find(conf.router, f"run {conf.run}" if conf.run else "the run")
    what = f"router {name_of(make)}"
    check_callable(make, what, "router(conf)", conf)
    with told(what, passes=(Dl4jError,)):
        made: WorkRouter = make(conf)
    check_router(made)
    if not conf.weighted_average and type(made).fold is WorkRouter.fold:
        raise ConfError(
            f"Conf.weighted_average is False, and {type(made).__name__} has the usual fold, which has no use for it; "
            "leave it out, or let the router subclass IterativeReduceWorkRouter and give that weighted_average"
        )
    return made


def checked(factory: PerformerFactory) -> PerformerFactory:
    """Return what makes the same performers, whose results are checked: they are somebody's own."""

    def make(conf: Conf, kernels: Kernels) -> WorkerPerformer:
        what = f"performer {name_of(factory)}"
        check_callable(factory, what, "performer(conf, kernels)", conf, kernels)
        with told(what, passes=(Dl4jError,)):
            return CheckedPerformer(factory(conf, kernels))

    return make


def import_parts(modules: Iterable[str]) -> None:
    """Import the modules that the user of this process has named, so that they register their parts.

    As for ``python -m``, they are looked for in the current folder first.

    Raises:
        UsageError: one cannot be imported, or registers nothing.
    """
    for module in modules:
        folder, before = str(Path.cwd()), [dict(registry.parts) for registry in (PERFORMERS, ROUTERS)]
        if folder not in sys.path:
            sys.path.insert(0, folder)
        was_there = module in sys.modules
        try:
            with exits_as_errors():
                importlib.import_module(module)
        except Exception as exc:
            hint = "; give its name as in an import, without .py" if module.endswith(".py") or "/" in module else ""
            raise UsageError(f"--use {module}: it cannot be imported: {error_text(exc)}{hint}") from exc
        if not was_there and [registry.parts for registry in (PERFORMERS, ROUTERS)] == before:
            raise UsageError(
                f"--use {module}: it registers no part; does it have @register_performer(...) or "
                "@register_router(...) at its top level?"
            )
        _USED[module] = module_digest(sys.modules[module])


def used_modules() -> dict[str, str]:
    """Return the digests of the modules that ``import_parts`` has imported, by their names."""
    return dict(_USED)


def _origin(part: Any) -> str:
    return f"{getattr(part, '__module__', '?')}.{getattr(part, '__qualname__', type(part).__qualname__)}"
