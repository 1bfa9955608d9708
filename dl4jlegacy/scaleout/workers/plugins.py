"""Registries of user-defined parts (performers, routers) by name, so that a ``Conf`` can refer to them.

A ``Conf`` comes from outside, so a name in it is never imported. A part is registered under its name in the process
that uses it. This is done by ``register_performer`` or ``register_router`` in a module that the process imports anyway
or with ``dl4j worker --use MODULE``, or by an entry point of an installed package, in the group
``dl4jlegacy.performers`` or ``dl4jlegacy.routers``.

Legacy: ``Configuration`` held class names, which every reader instantiated.
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
from dl4jlegacy.scaleout.conf import USUAL_JOBS, Conf
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
"""Makes a worker's own performer from the run's Conf (with the performer's arguments) and the kernels."""
RouterFactory = Callable[[Conf], WorkRouter]
"""Makes a router from the run's Conf (with the router's arguments)."""
F = TypeVar("F", bound=Callable[..., Any])

_USED: dict[str, str] = {}
_OWN = "dl4jlegacy."
"""Prefix of the names of the package's internal performers, which messages do not list."""


class PartRegistry:
    """The parts of one kind that are registered in this process, by name.

    Args:
        kind: the kind's name in messages.
        group: of the entry points by which installed packages offer such parts.
        built_in: the names of the package's own parts.
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
                if _origin(known) != _origin(factory):  # an equal origin means that the module was imported again
                    raise ConfError(
                        f"two {self.kind}s are called {name!r}: {_origin(known)} and {_origin(factory)}; give one of "
                        "them another name"
                    )
                self.parts[name] = factory
            return factory

        return register

    def find(self, name: str, wanted_by: str) -> Callable[..., Any]:
        """Return the part of this name that is registered in this process, or offered by an installed package.

        Args:
            name: as given in the Conf.
            wanted_by: the requester, which begins the error message.

        Raises:
            MissingPartError: there is no such part. ConfError: two packages offer it.
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
    """Return a decorator that registers a performer class or function under its name in a Conf.

    ::

        @register_performer("word-count")
        class WordCountPerformer:
            def __init__(self, conf, kernels): ...

    Raises:
        ConfError: the name is empty, or belongs to another performer.
    """
    return PERFORMERS.register(name)


def register_router(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a router under its name in ``Conf.router``.

    The router is a class or function that takes the Conf. The master and all workers of a run need it: its methods are
    pure functions, from which each process determines which jobs are open. Its arguments are in ``Conf.router_args``.

    Raises:
        ConfError: the name is empty, or belongs to another router.
    """
    return ROUTERS.register(name)


def find_performer(name: str, wanted_by: str) -> PerformerFactory:
    """Return the performer with this name; arguments and errors as for ``PartRegistry.find``."""
    return PERFORMERS.find(name, wanted_by)


def find_router(conf: Conf) -> WorkRouter:
    """Return the router of a run.

    Raises:
        MissingPartError: this process does not have the router.
        ConfError: its options are not allowed, or it sends no messages although the Conf configures a mesh.
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
        # Devices that round differently cannot replay each other's jobs.
        has_choice = any(field.name == "state_every" for field in dataclasses.fields(kind))
        unlike = {"state_every": 1} if conf.mixed_devices and has_choice else {}
        return strategies.create_router(
            conf.router,
            {**conf.router_args, **unlike},
            window=conf.window,
            jobs_per_round=conf.jobs_per_round or USUAL_JOBS,
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
    """Return a factory of the same performers with checked results, for a user's own performers."""

    def make(conf: Conf, kernels: Kernels) -> WorkerPerformer:
        what = f"performer {name_of(factory)}"
        check_callable(factory, what, "performer(conf, kernels)", conf, kernels)
        with told(what, passes=(Dl4jError,)):
            return CheckedPerformer(factory(conf, kernels))

    return make


def import_parts(modules: Iterable[str]) -> None:
    """Import the modules named by the user of this process, so that they register their parts.

    As for ``python -m``, the current folder is searched first.

    Raises:
        UsageError: a module cannot be imported, or registers nothing.
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
    """Return the digests of the modules that ``import_parts`` has imported, by module name."""
    return dict(_USED)


def _origin(part: Any) -> str:
    return f"{getattr(part, '__module__', '?')}.{getattr(part, '__qualname__', type(part).__qualname__)}"
