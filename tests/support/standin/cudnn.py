"""A stand-in for the front end of cuDNN that computes in NumPy on host memory.

Like the real one it has several plans for a convolution, each with notes; a plan that was deselected refuses to be
built, and only a plan that was built can be executed, on memory that begins at a multiple of 16 bytes. What the real
one demands of a graph, it is asked itself (``test_the_real_front_end_takes_our_graphs_and_obeys``).
"""

from __future__ import annotations

import ctypes
import math
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np

from dl4jlegacy.kernels.numpy import tiles
from tests.support.standin.engine import launch, thread

data_type, heur_mode = Enum("data_type", "FLOAT"), Enum("heur_mode", "A FALLBACK")
numerical_note = Enum("numerical_note", "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION NONDETERMINISTIC")
PLANS: list[tuple[Any, ...]] = [
    (numerical_note.NONDETERMINISTIC,),
    (numerical_note.TENSOR_CORE,),
    (numerical_note.TENSOR_CORE, numerical_note.DOWN_CONVERT_INPUTS),
    (),
]


class Tensor:
    """One operand of a graph."""

    def __init__(self, dim: list[int] | None = None) -> None:
        self.dim = dim

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_output(self, value: Any) -> Tensor:
        return self

    set_data_type = set_stride = set_output

    def at(self, address: int) -> np.ndarray:
        assert self.dim is not None
        flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (math.prod(self.dim),))
        return flat.reshape(*self.dim, 1)


class Front(ModuleType):
    """What ``import cudnn`` gives.

    Attributes:
        graphs: those built, in order.
        streams: which streams work was sent to, one for every execution.
        devices: which one was current when a handle was made.
        refuses: kinds of convolution that there is no plan for.
        workspaces: how many bytes every plan needs.
        factor: what results are multiplied by; not 1 for a library that computes nonsense.
    """

    def __init__(self, version: int = 91002, fails: Exception | None = None) -> None:
        super().__init__("cudnn")
        self.data_type, self.heur_mode, self.numerical_note = data_type, heur_mode, numerical_note
        self.graphs: list[Graph] = []
        self.streams: list[int] = []
        self.devices: list[int] = []
        self.refuses: set[str] = set()
        self.factor = 1.0
        self.workspaces = [1000] * len(PLANS)
        self._version, self._fails, self._stream = version, fails, -1

    def backend_version(self) -> int:
        return self._version

    def create_handle(self) -> object:
        if self._fails:
            raise self._fails
        self.devices.append(thread.device)
        return self

    def set_stream(self, handle: object, stream: int) -> None:
        assert handle is self
        self._stream = stream

    def pygraph(self, **settings: Any) -> Graph:
        self.graphs.append(Graph(self))
        return self.graphs[-1]


class Graph:
    """One convolution."""

    def __init__(self, front: Front) -> None:
        self.front, self.kind, self.barred = front, "", set[Any]()
        self.built, self.runs, self.most = -1, 0, 0

    def tensor(self, *, dim: list[int], **settings: Any) -> Tensor:
        return Tensor(dim)

    def __getattr__(self, kind: str) -> Any:
        if not kind.startswith("conv_"):
            raise AttributeError(kind)

        def convolution(*, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any, **inputs: Tensor) -> Tensor:
            self.kind, self.inputs, self.out, self.steps = kind, [*inputs.values()], Tensor(), (stride, dilation)
            return self.out

        return convolution

    def validate(self) -> None:
        pass

    build_operation_graph = validate

    def create_execution_plans(self, modes: list[Any]) -> None:
        if self.kind in self.front.refuses:
            raise RuntimeError(f"No valid engine configs for {self.kind}\nand a second line")

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        self.barred.update(notes)

    def deselect_workspace_greater_than(self, size: int) -> None:
        self.most = size

    def get_execution_plan_count(self) -> int:
        return len(PLANS)

    def build_plan_at_index(self, index: int) -> None:
        if self.barred & set(PLANS[index]) or self.front.workspaces[index] > self.most:
            raise RuntimeError("Deselecting execution plan")
        self.built = index

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index == self.built
        return self.front.workspaces[index]

    def execute_plan_at_index(self, given: dict[Tensor, int], workspace: int, index: int, handle: Any) -> None:
        assert index == self.built and handle is self.front and workspace % 16 == 0
        if any(address % 16 for address in given.values()):
            raise RuntimeError(
                "execute(...) failed with message: , and code: CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"
            )
        self.front.streams.append(self.front._stream)
        self.runs += 1
        launch(lambda: self._compute(given, workspace))

    def _compute(self, given: dict[Tensor, int], workspace: int) -> None:
        ctypes.memset(workspace, 255, 1000)
        a, b, out = (tensor.at(given[tensor]) for tensor in (*self.inputs, self.out))
        if self.kind == "conv_fprop":
            W = b[..., 0]
            tiles.conv_forward(a, W, np.zeros(len(W), np.float32), out, *self.steps, False)
        elif self.kind == "conv_wgrad":
            tiles.conv_backward_weights(a, b, out[..., 0], *self.steps)
        else:
            tiles.conv_backward_input(a, b[..., 0], out, *self.steps)
        out *= self.front.factor
