"""The grid named by a ``--tracker``: its members, and the cluster's name, which local servers know."""

from __future__ import annotations

import os
from pathlib import Path

from dl4jlegacy.errors import UsageError
from dl4jlegacy.services.servers import Services

__all__ = ["grid_of"]


def grid_of(tracker: str, cluster_name: str | None, *, label: str = "--tracker ", or_else: str = "") -> tuple[str, str]:
    """Return the members and the cluster name of a grid; raises ``UsageError``.

    Args:
        tracker: ``hazelcast://host:port[,host:port]``.
        cluster_name: None: that of the local services, if these are its members (or were before they were stopped),
            else Hazelcast's default.
        label: text before ``tracker`` in the message.
        or_else: an alternative to give, for the message.
    """
    members = tracker.removeprefix("hazelcast://")
    if members == tracker or not members:
        raise UsageError(f"{label}{tracker}: give {or_else}hazelcast://host:port[,host:port]")
    if cluster_name:
        return members, cluster_name
    folder = os.environ.get("DL4J_SERVICES")
    state = Services.last(Path(folder) if folder else None)
    ours = state is not None and set(state.hazelcast.split(",")) == set(members.split(","))
    return members, state.cluster_name if state is not None and ours else "dev"
