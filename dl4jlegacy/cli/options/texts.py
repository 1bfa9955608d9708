"""Training options that say how a text, or files of sequences, are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dl4jlegacy.cli.options.values import one_of
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.errors import UsageError

if TYPE_CHECKING:
    from dl4jlegacy.cli.options.read import TrainOptions
    from dl4jlegacy.scaleout.conf import Conf

__all__ = ["is_text", "sequence_changes", "text_changes"]


def text_changes(options: TrainOptions, conf: Conf) -> dict[str, Any]:
    """Return the Conf fields that the options change; raises ``UsageError`` if the options do not fit."""
    changes: dict[str, Any] = {}
    if options.tokens is not None:
        changes["tokens"] = one_of("--tokens", options.tokens, ("characters", "words"))
    if options.vocabulary_size is not None:
        changes["vocabulary_size"] = options.vocabulary_size
        has_words = changes.get("tokens", "" if conf.text is None else conf.text.tokens) == "words"
        if not has_words:
            raise UsageError(f"--vocabulary-size {options.vocabulary_size} is for words; give --tokens words")
    elif changes.get("tokens") == "characters":
        changes["vocabulary_size"] = 0  # of the file's words
    return {"text": replace(conf.text or TextReader(), **changes)} if changes else {}


def sequence_changes(options: TrainOptions, conf: Conf) -> dict[str, Any]:
    """Return the Conf fields that the options change."""
    return {"sequences": SequenceRecordReader()} if options.sequences and conf.sequences is None else {}


def is_text(path: Path) -> bool:
    """Return whether a file is a text file, by its name."""
    return path.suffix.lower() == ".txt"
