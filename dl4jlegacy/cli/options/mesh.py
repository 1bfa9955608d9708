"""Training options that let workers send messages to each other directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dl4jlegacy.cli.options.values import one_of
from dl4jlegacy.errors import UsageError
from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.links.mesh.organizer import MESH_BUILD_MODES

if TYPE_CHECKING:
    from dl4jlegacy.cli.options.read import TrainOptions
    from dl4jlegacy.scaleout.conf import Conf

__all__ = ["mesh_changes"]


def mesh_changes(options: TrainOptions, conf: Conf) -> dict[str, Any]:
    """Return the Conf fields that the options change; raises ``UsageError`` if the options do not fit."""
    changes: dict[str, Any] = {}
    if options.mesh is not None:
        changes["mesh_build_mode"] = one_of("--mesh", options.mesh, MESH_BUILD_MODES)
    if options.network_mask is not None:
        if conf.void_configuration is None and not changes:
            raise UsageError(f"--network-mask {options.network_mask} says where a mesh is; give --mesh plain or mesh")
        changes["network_mask"] = options.network_mask
    return {"void_configuration": replace(conf.void_configuration or VoidConfiguration(), **changes)} if changes else {}
