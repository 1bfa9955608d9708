"""Convolution through cuDNN and its front end for Python, both optional; images ``(rows, channels, h, w, 1)``, float32.

One graph with one operation is built for every combination of shapes, strides and dilation, and kept. Among the plans
recommended by cuDNN, the first acceptable one that builds is used. A plan is not acceptable if its notes say that its
rounding differs from run to run, that it rounds its inputs, or (unless TF32 is requested) that it uses tensor cores.
An operation without an acceptable plan uses our own method.

API: https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/, versions 1.18 to 1.28.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.errors import how_to_install
from dl4jlegacy.kernels.cuda.scratch import Scratch

__all__ = ["CudnnConvolution", "find_cudnn"]

Pair = tuple[int, int]
_OLDEST = 90000
_MOST_WORKSPACE = 1 << 30  # bytes; what is faster with more than that is not worth the memory
_ALIGNMENT = 16  # bytes; cuDNN refuses arrays that begin elsewhere, as the parameters of a layer behind others may
_INSTALL = f"{how_to_install('gpu', 'gpu13')} (CUDA 12 or 13)"


class _UnusableError(Exception):
    """The reason why cuDNN cannot be used; caught within this module."""


def find_cudnn(xp: Any, device: int, precision: str, scratch: Scratch) -> tuple[CudnnConvolution | None, str]:
    """Return convolutions through cuDNN on a device, or None and the reason why not; never raises.

    The environment variable ``DL4J_CUDNN=0`` switches cuDNN off. cuDNN must first compute a small convolution: a
    missing library, or one for other devices, is detected here and not within a job.
    """
    if os.environ.get("DL4J_CUDNN") == "0":
        return None, "DL4J_CUDNN=0"
    try:
        import cudnn
    except Exception as exc:  # noqa: BLE001  # not installed, or its binary does not fit this Python or system
        return None, f"the front end of cuDNN cannot be imported ({exc}); {_INSTALL}"
    try:
        version = int(cudnn.backend_version())
        if version < _OLDEST:
            return None, f"cuDNN {version} is too old, 9.0 is needed; {_INSTALL}"
        with xp.cuda.Device(device):  # a handle belongs to the device that is current when it is made
            found = CudnnConvolution(cudnn, xp, precision, scratch)
            found.try_out()
    except Exception as exc:  # noqa: BLE001  # RuntimeError, TypeError, its own kinds: whatever is missing
        return None, f"cuDNN cannot be used ({_first_line(exc)}); {_INSTALL}"
    return found, ""


def _first_line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]


class CudnnConvolution:
    """Convolutions of one thread on the device that is current at its creation.

    Attributes:
        name: cuDNN and its version.
        refused: the operations without a plan, ``(kind, shapes...)``, with cuDNN's message.
    """

    def __init__(self, cudnn: Any, xp: Any, precision: str, scratch: Scratch) -> None:
        version = int(cudnn.backend_version())
        self.name = f"cudnn {version // 10000}.{version // 100 % 100}.{version % 100}"
        self.refused: dict[tuple[Any, ...], str] = {}
        self._cudnn, self._xp, self._scratch = cudnn, xp, scratch
        self._handle = cudnn.create_handle()
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        note = cudnn.numerical_note
        self._barred = [note.NONDETERMINISTIC, note.DOWN_CONVERT_INPUTS, note.REDUCED_PRECISION_REDUCTION]
        if precision == "float32":
            self._barred.append(note.TENSOR_CORE)  # TF32: ten bits of every float32

    def try_out(self) -> None:
        """Compute a small convolution; raises cuDNN's errors, or an error for a wrong sum."""
        shapes = ((1, 1, 3, 3, 1), (1, 1, 3, 3), (1, 1, 1, 1, 1))
        x, W, y = (self._xp.asarray(np.ones(shape, np.float32)) for shape in shapes)
        if not self.forward(x, W, y, (1, 1), (1, 1)):
            raise _UnusableError(next(iter(self.refused.values())))
        found = float(to_host(y).sum())
        if found != 9:
            raise _UnusableError(f"the sum of nine ones was {found}")

    def forward(self, x: Array, W: Array, y: Array, stride: Pair, dilation: Pair) -> bool:
        """Write ``y``, without the bias; return False and do nothing if cuDNN has no plan for it."""
        return self._run("conv_fprop", {"image": x, "weight": W}, y, stride, dilation)

    def backward_weights(self, x: Array, dz: Array, gW: Array, stride: Pair, dilation: Pair) -> bool:
        """Write the gradient of the weights, or return False."""
        return self._run("conv_wgrad", {"image": x, "loss": dz}, gW, stride, dilation)

    def backward_input(self, dz: Array, W: Array, dx: Array, stride: Pair, dilation: Pair) -> bool:
        """Write the gradient of the padded images, or return False."""
        return self._run("conv_dgrad", {"loss": dz, "filter": W}, dx, stride, dilation)

    def _run(self, kind: str, inputs: dict[str, Array], out: Array, stride: Pair, dilation: Pair) -> bool:
        shapes = {port: array.shape[:4] for port, array in inputs.items()}
        key = (kind, *shapes.values(), out.shape[:4], tuple(stride), tuple(dilation))
        if key in self.refused:
            return False
        self._cudnn.set_stream(self._handle, self._xp.cuda.get_current_stream().ptr)
        plan = self._plans.get(key)
        if plan is None:
            try:
                plan = _Plan(
                    self._cudnn,
                    self._handle,
                    self._barred,
                    kind,
                    shapes=shapes,
                    out_shape=out.shape[:4],
                    stride=stride,
                    dilation=dilation,
                )
            except Exception as exc:  # noqa: BLE001  # there is no common kind of error for "no plan"
                self.refused[key] = _first_line(exc)
                return False
            self._plans[key] = plan
        workspace = self._scratch.buffer("cudnn", (max(1, plan.workspace),), "B")
        read, written = [self._aligned(port, array) for port, array in inputs.items()], self._aligned("out", out)
        for array, held in zip(inputs.values(), read, strict=True):
            if held is not array:
                held[...] = array
        plan.run([_address(array) for array in (*read, written)], _address(workspace), self._handle)
        if written is not out:
            out[...] = written
        return True

    def _aligned(self, port: str, array: Array) -> Array:
        """Return the array, or scratch memory of its shape if its address is not aligned for cuDNN."""
        return array if _address(array) % _ALIGNMENT == 0 else self._scratch.buffer(f"cudnn {port}", array.shape, "f")


class _Plan:
    """A built convolution for one shape: its graph, the index of the chosen plan, and the plan's workspace size."""

    __slots__ = ("_graph", "_index", "_tensors", "workspace")

    def __init__(
        self,
        cudnn: Any,
        handle: Any,
        barred: list[Any],
        kind: str,
        *,
        shapes: dict[str, tuple[int, ...]],
        out_shape: tuple[int, ...],
        stride: Pair,
        dilation: Pair,
    ) -> None:
        real = cudnn.data_type.FLOAT
        self._graph = cudnn.pygraph(
            name=kind, io_data_type=real, intermediate_data_type=real, compute_data_type=real, handle=handle
        )
        inputs = {
            port: self._graph.tensor(dim=list(shape), stride=_packed(shape), data_type=real, name=port)
            for port, shape in shapes.items()
        }
        out = getattr(self._graph, kind)(
            **inputs, pre_padding=[0, 0], post_padding=[0, 0], stride=list(stride), dilation=list(dilation)
        )
        out.set_output(True).set_data_type(real).set_dim(list(out_shape)).set_stride(_packed(out_shape))
        self._tensors = (*inputs.values(), out)
        self._graph.validate()
        self._graph.build_operation_graph()
        self._graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self._graph.deselect_numeric_notes(barred)
        self._graph.deselect_workspace_greater_than(_MOST_WORKSPACE)
        self._index = self._first_plan()
        self.workspace = int(self._graph.get_workspace_size_plan_at_index(self._index))

    def _first_plan(self) -> int:
        """Build plans in the order of cuDNN's recommendation until one succeeds; deselected plans fail to build."""
        said = "cuDNN recommends no plan"
        for index in range(self._graph.get_execution_plan_count()):
            try:
                self._graph.build_plan_at_index(index)
            except Exception as exc:  # noqa: BLE001  # its own kind or RuntimeError, by version and reason
                said = _first_line(exc)
            else:
                return index
        raise _UnusableError(f"no plan for this convolution: {said}")

    def run(self, pointers: list[int], workspace: int, handle: Any) -> None:
        """Enqueue the convolution on the handle's stream; ``pointers`` are those of the inputs, then the output."""
        self._graph.execute_plan_at_index(
            dict(zip(self._tensors, pointers, strict=True)), workspace, self._index, handle
        )


def _address(array: Any) -> int:
    return int(array.data.ptr)


def _packed(shape: tuple[int, ...]) -> list[int]:
    """Return the strides of a C-contiguous array, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides
