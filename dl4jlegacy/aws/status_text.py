"""What there is of a cluster, for people and for programs; and which of its nodes a name means."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dl4jlegacy.aws.boxes import Box
from dl4jlegacy.aws.cluster_spec import MASTER, WORKER
from dl4jlegacy.aws.setup import ClusterSetup, ClusterStatus
from dl4jlegacy.errors import ConfError, nearest

__all__ = ["fields_of", "node_of", "text_of"]


def fields_of(found: ClusterStatus, price: dict[str, Any]) -> dict[str, Any]:
    """Return it for JSON."""
    return {
        "cluster": found.name,
        "region": found.region,
        "expires": found.expires,
        **({"price": price} if price else {}),
        "boxes": [asdict(box) for box in found.boxes],
        "belongings": list(found.belongings),
        "workers": None if found.workers is None else list(found.workers),
    }


def text_of(found: ClusterStatus, price: dict[str, Any]) -> str:
    """Return it for people."""
    end = f", ends by itself at {found.expires}" if found.expires else ""
    lines = [f"cluster {found.name} in {found.region}{end}"]
    for box in found.boxes:
        kind = f"{box.size}{' spot' if box.spot else ''}"
        lines.append(f"  {box.role:7} {box.id} {kind} {box.state} {box.public_address} {box.zone}".rstrip())
    lines += [f"  {each}" for each in found.belongings]
    if len(lines) == 1:
        return f"there is nothing of cluster {found.name} in {found.region}"
    if found.workers is not None:
        lines.append(f"  {len(found.workers)} workers registered")
    if price:
        lines.append(f"  {price['dollars_per_hour']:.2f} $/h, at most {price['dollars_at_most']:.2f} $")
    return "\n".join(lines)


def node_of(setup: ClusterSetup, node: str) -> Box:
    """Return the running instance that ``node`` names: master, a worker's number, an id; raises ``ConfError``."""
    boxes = [box for box in setup.status(ask=False).boxes if box.state == "running"]
    workers = [box for box in boxes if box.role == WORKER]
    names = {**{str(n): box for n, box in enumerate(workers)}, **{box.id: box for box in boxes}}
    names.update((MASTER, box) for box in boxes if box.role == MASTER)
    if node not in names:
        known = nearest(node, list(names)) if names else "; no instance of it is running"
        raise ConfError(f"cluster {setup.names.cluster} has no node {node!r}{known}")
    return names[node]
