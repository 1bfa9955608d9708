"""What every input preprocessor offers to the stage that it stands in."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.step import Step

__all__ = ["Back", "PreProcessor"]

Back = Callable[[Array], Array]


class PreProcessor(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Stands between two layers; frozen, without parameters."""

    def title(self) -> str:
        """Return the kind, for messages."""
        return str(self.__struct_config__.tag)

    def natural_input(self) -> AnyInputType | None:
        """Return the only type that can enter, if it is known without looking at the layer before."""
        return None

    @property
    def keeps_type(self) -> bool:
        """Whether what leaves is of the type that enters, so that the layer behind may tell what that is."""
        return False

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type that leaves; raise ``ShapeError`` if ``given`` cannot enter."""
        raise NotImplementedError

    def rows(self, x: Array, step: Step) -> int:
        """Return the number of images (or vectors) that leave when ``x`` enters."""
        return step.rows

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return what ``x`` becomes, and the way back for its gradient."""
        raise NotImplementedError

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return the mask ``(time steps, examples)`` behind the preprocessor."""
        return mask

    def _refuse(self, given: AnyInputType, wants: str) -> ShapeError:
        return ShapeError(f"preprocessor {self.title()} takes {wants}, what comes in is {given}")
