"""Training options that say how texts, sequences and other files are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dl4jlegacy.cli.options.values import one_of
from dl4jlegacy.datasets.reading import DATA_KINDS
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.errors import UsageError

if TYPE_CHECKING:
    from dl4jlegacy.cli.options.read import TrainOptions
    from dl4jlegacy.scaleout.conf import Conf

__all__ = ["reader_changes"]


def reader_changes(options: TrainOptions, conf: Conf) -> dict[str, Any]:
    """Return the readers of the Conf that the options change; raises ``UsageError`` if the options do not fit."""
    found: dict[str, Any] = {"sequences": SequenceRecordReader()} if options.sequences and not conf.sequences else {}
    _check_text(options, conf.text or TextReader())
    if options.tokens == "characters":
        found["text"] = replace(conf.text or TextReader(), tokens="characters", vocabulary_size=0)
    for kind in DATA_KINDS:
        fields = {name: value for name in kind.options if (value := getattr(options, name)) is not None}
        if fields:
            found[kind.name] = replace(found.get(kind.name) or getattr(conf, kind.name) or kind.reader(), **fields)
    return found


def _check_text(options: TrainOptions, reader: TextReader) -> None:
    """Raise ``UsageError`` if the options of a text do not fit each other."""
    if options.tokens is not None:
        one_of("--tokens", options.tokens, ("characters", "words"))
    if options.vocabulary_size is not None and (options.tokens or reader.tokens) != "words":
        raise UsageError(f"--vocabulary-size {options.vocabulary_size} is for words; give --tokens words")
