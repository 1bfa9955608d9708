"""The names above the columns of a table, by which a model finds its features in another file, in whatever order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from dl4jlegacy.datasets.tables.text_rows import is_number
from dl4jlegacy.errors import ConfError, DataError, nearest

__all__ = ["Header", "are_names", "check_different", "check_names", "warn_of_unknown"]

logger = logging.getLogger(__name__)

_SHOWN = 20  # columns that a message lists


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names of a table's columns in their order, and which of them is the label (``""``: none)."""

    names: tuple[str, ...]
    label: str = ""

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names) or (self.label and self.label not in self.names):
            raise ConfError(f"a header has the columns {list(self.names)[:_SHOWN]} and the label {self.label!r}")

    @staticmethod
    def of(names: Sequence[str] | None, label: int | None) -> Header | None:
        """Return the header of columns; None if they have no names, or one name twice.

        Args:
            names: of the columns; None: the file has none.
            label: the place of the label among them, from 0.
        """
        if not names or len(set(names)) < len(names):
            return None
        return Header(tuple(names), "" if label is None else names[label])

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns without the label, in the order in which a model takes them."""
        return tuple(name for name in self.names if name != self.label)

    def is_in(self, cells: Sequence[str]) -> bool:
        """Return whether cells of a row are names of these columns; numbers, and empty ones, may be an example's."""
        return not {name for name in self.names if name and not is_number(name)}.isdisjoint(cells)

    def places(
        self, names: Sequence[str], where: str, *, labelled: bool, warns: bool = True, index: Sequence[str] = ()
    ) -> tuple[list[int], int | None]:
        """Return the places, from 0, of the features in another table, in their order here, and that of the label.

        Columns that are not known are left out.

        Args:
            names: of that table's columns.
            where: it is, for messages.
            labelled: whether the label must be there.
            warns: whether columns that are left out are named in a warning, without those of an ``index``.

        Raises:
            DataError: a column is not there, or there twice.
        """
        wanted = self.names if labelled else self.features
        check_names(names, wanted, where)
        known = {*self.names, *index}
        if warns:
            warn_of_unknown((name for name in names if name not in known), where)
        place = {name: number for number, name in enumerate(names)}
        return [place[name] for name in self.features], place.get(self.label)


def check_different(names: Iterable[str], name: str) -> None:
    """Raise ``DataError`` if several columns of the file ``name`` are called alike."""
    for column, count in Counter(names).items():
        if count > 1:
            raise DataError(f"{name}: column {column!r} is there {count} times; name each differently")


def check_names(names: Sequence[str], wanted: Sequence[str], where: str, *, whose: str = "") -> None:
    """Raise ``DataError`` unless each wanted column is among the names, once; ``whose`` columns, if not a model's."""
    counts = Counter(names)
    for name in wanted:
        if counts[name] > 1:
            raise DataError(f"{where}: column {name!r} is there {counts[name]} times; name each differently")
    if missing := [name for name in wanted if not counts[name]]:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"{where} has no column {missing[0]!r}{more}, {whose or 'which the model learned from'}"
            f"{nearest(missing[0], list(names[:50]))}; columns are found by their names, and in their order only in a "
            "file without names"
        )


def warn_of_unknown(names: Iterable[str], where: str) -> None:
    """Name the columns of a table that a model does not know, and that are left out, in a warning."""
    if found := list(names):
        shown = ", ".join(map(repr, found[:_SHOWN])) + (" ..." if len(found) > _SHOWN else "")
        logger.warning("%s: columns that the model does not know are left out: %s", where, shown)


def are_names(names: Sequence[str]) -> bool:
    """Return whether these tell columns apart: all are there, none is a number, none is there twice."""
    return bool(names) and all(names) and len(set(names)) == len(names) and not any(map(is_number, names))
