"""The names of a table's columns, by which a model finds its features in another file, in any order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from dl4jlegacy.datasets.tables.text_rows import is_number
from dl4jlegacy.errors import ConfError, DataError, nearest

__all__ = ["Header", "are_names", "check_different", "check_names", "warn_of_unknown"]

logger = logging.getLogger(__name__)

_SHOWN = 20  # columns listed in a message


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names of a table's columns in order, and the name of the label (``""``: none)."""

    names: tuple[str, ...]
    label: str = ""

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names) or (self.label and self.label not in self.names):
            raise ConfError(f"a header has the columns {list(self.names)[:_SHOWN]} and the label {self.label!r}")

    @staticmethod
    def of(names: Sequence[str] | None, label: int | None) -> Header | None:
        """Return the header of columns; None if they have no names, or duplicate names.

        Args:
            names: of the columns; None: the file has none.
            label: the position of the label, from 0.
        """
        if not names or len(set(names)) < len(names):
            return None
        return Header(tuple(names), "" if label is None else names[label])

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the feature columns, in the order in which a model takes them."""
        return tuple(name for name in self.names if name != self.label)

    def is_in(self, cells: Sequence[str]) -> bool:
        """Return whether the cells of a row contain a name of these columns; numeric and empty names do not count."""
        return not {name for name in self.names if name and not is_number(name)}.isdisjoint(cells)

    def places(
        self, names: Sequence[str], where: str, *, labelled: bool, warns: bool = True, index: Sequence[str] = ()
    ) -> tuple[list[int], int | None]:
        """Return the positions of the features in another table, from 0, in the order of this header, and of the label.

        Unknown columns are ignored.

        Args:
            names: the column names of the other table.
            where: its name in messages.
            labelled: whether the label must exist.
            warns: whether to warn of ignored columns, except for those of an ``index``.

        Raises:
            DataError: a column is missing, or duplicated.
        """
        wanted = self.names if labelled else self.features
        check_names(names, wanted, where)
        known = {*self.names, *index}
        if warns:
            warn_of_unknown((name for name in names if name not in known), where)
        place = {name: number for number, name in enumerate(names)}
        return [place[name] for name in self.features], place.get(self.label)


def check_different(names: Iterable[str], name: str) -> None:
    """Raise ``DataError`` if several columns of the file ``name`` have the same name."""
    for column, count in Counter(names).items():
        if count > 1:
            raise DataError(f"{name}: column {column!r} is there {count} times; name each differently")


def check_names(names: Sequence[str], wanted: Sequence[str], where: str, *, whose: str = "") -> None:
    """Raise ``DataError`` unless each wanted column occurs once; ``whose`` names their owner, by default the model."""
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
    """Warn of table columns that the model does not know and that are ignored."""
    if found := list(names):
        shown = ", ".join(map(repr, found[:_SHOWN])) + (" ..." if len(found) > _SHOWN else "")
        logger.warning("%s: columns that the model does not know are left out: %s", where, shown)


def are_names(names: Sequence[str]) -> bool:
    """Return whether these are usable column names: none is empty or a number, and all are different."""
    return bool(names) and all(names) and len(set(names)) == len(names) and not any(map(is_number, names))
