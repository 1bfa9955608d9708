"""Holds a network in Python against what Deeplearning4j answered; the verdict is a word and what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.interchange.dl4j import layout
from tests.interop.real_dl4j import Answer

SAME = "same"
_OUTPUT, _STATE, _STEP = 1e-5, 1e-5, 1e-4


def outputs(network: Any, arrays: Mapping[str, Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return the network's outputs for a batch."""
    masks = arrays.get("fm")
    if isinstance(network, ComputationGraph):
        return network.outputs(*arrays["x"], features_masks=masks)
    return [network.output(arrays["x"][0], None if masks is None else masks[0])]


def verdict(network: Any, answer: Answer, arrays: Mapping[str, Sequence[np.ndarray]], *, updater: bool = True) -> str:
    """Return ``SAME``, or how the network and Deeplearning4j differ: outputs, updater state, or one step further."""
    for i, (ours, theirs) in enumerate(zip(outputs(network, arrays), answer.outputs, strict=True)):
        if ours.shape != theirs.shape:
            return f"outputs differ: {ours.shape} here, {theirs.shape} there"
        if masked := arrays.get("fm"):
            keep = np.broadcast_to(masked[0][:, None, :] if ours.ndim == 3 else np.ones(ours.shape), ours.shape) > 0
            ours, theirs = ours[keep], theirs[keep]
        if not _close(ours, theirs, _OUTPUT):
            return f"outputs differ: output {i} by {_distance(ours, theirs):.1e}"
    layouts = layout.layouts_of(answer.configuration, network.conf)
    if updater and answer.state is not None and network.updater_state.size:
        theirs = layout.state_to_ours(answer.state, network.layers, network.layout, layouts)
        if network.updater_state.size != theirs.size:
            return f"updater state differs: {network.updater_state.size} here, {theirs.size} there"
        if not _close(network.updater_state, theirs, _STATE):
            return f"updater state differs by {_distance(network.updater_state, theirs):.1e}"
    if answer.after is not None:
        before, after = (layout.params_to_ours(v, network.layout, layouts) for v in (answer.params, answer.after))
        ours = network.params.copy()
        _step(network, arrays)
        if not _close(network.params - ours, after - before, _STEP):
            wrong = int(np.argmax(np.abs(network.params - ours - after + before)))
            span = next(span for span in network.layout.spans if span.start <= wrong < span.stop)
            distance, size = _distance(network.params - ours, after - before), np.abs(after - before).max()
            return f"one step further differs: {span.name} of layer {span.layer} by {distance:.1e} of {size:.1e}"
    return SAME


def _step(network: Any, arrays: Mapping[str, Sequence[np.ndarray]]) -> None:
    stream, iteration = Stream.of(1), network.iteration
    masks = {"features_mask": arrays.get("fm"), "labels_mask": arrays.get("lm")}
    if isinstance(network, ComputationGraph):
        network.fit_batch(list(arrays["x"]), list(arrays["l"]), iteration=iteration, stream=stream, **masks)
    else:
        one = {name: None if mask is None else mask[0] for name, mask in masks.items()}
        network.fit_batch(arrays["x"][0], arrays["l"][0], iteration=iteration, stream=stream, **one)


def _close(ours: Any, theirs: Any, tolerance: float) -> bool:
    return bool(np.allclose(ours, theirs, rtol=tolerance, atol=tolerance))


def _distance(ours: Any, theirs: Any) -> float:
    return float(np.nanmax(np.abs(np.asarray(ours, float) - theirs), initial=0.0))
