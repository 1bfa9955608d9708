"""The topological order of a graph's vertices, which is also the order of their parameters in the flat vector.

Kahn's algorithm as in Deeplearning4j (``ComputationGraph.topologicalSortOrder``), with the iteration order of a Java
``HashSet<Integer>``: model files interchange only if every vertex has the same place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from dl4jlegacy.errors import ConfError

__all__ = ["topological_order"]


def topological_order(network_inputs: Sequence[str], vertices: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return network inputs and vertices, each after all of its inputs.

    Args:
        network_inputs: their names.
        vertices: the inputs of every vertex, in the order in which the vertices were added.

    Raises:
        ConfError: the vertices contain a cycle; the message shows it.
    """
    names = [*network_inputs, *vertices]
    place = {name: index for index, name in enumerate(names)}
    waits_for = [{place[source] for source in vertices.get(name, ())} for name in names]
    leads_to: list[list[int]] = [[] for _ in names]
    for index, sources in enumerate(waits_for):
        for source in sorted(sources):
            leads_to[source].append(index)
    ready = deque(index for index in _as_java_map(len(names)) if not waits_for[index])
    order: list[str] = []
    while ready:
        index = ready.popleft()
        order.append(names[index])
        for following in _as_java_set(leads_to[index]):
            waits_for[following].remove(index)
            if not waits_for[following]:
                ready.append(following)
    if len(order) < len(names):
        raise ConfError(f"the vertices {_circle(vertices, set(order))} form a circle; none of them can be computed")
    return tuple(order)


def _as_java_map(size: int) -> Sequence[int]:
    """Return 0 to ``size - 1`` in the order of a Java HashMap with these keys: ascending, as all fit its table."""
    return range(size)


def _as_java_set(values: Sequence[int]) -> list[int]:
    """Return small integers, added in this order, in the iteration order of a Java HashSet: by bucket."""
    buckets = 16
    while len(values) > buckets * 3 // 4:
        buckets *= 2
    return sorted(dict.fromkeys(values), key=lambda value: value % buckets)


def _circle(vertices: Mapping[str, Sequence[str]], done: set[str]) -> str:
    """Return one cycle among the vertices that are not ``done``, as ``a -> b -> a``."""
    left = {name: [source for source in sources if source not in done] for name, sources in vertices.items()}
    name = next(name for name, sources in left.items() if name not in done and sources)
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = left[name][0]
    return " -> ".join(reversed([*path[path.index(name) :], name]))
