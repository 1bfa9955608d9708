"""Puts folders of files through the ways into the package, beside the same folders without what is odd in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.cli import main
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.serving.answers import Limits, RefusedError, read_body
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.training.prepare import prepare
from tests.support.odd_page import OTHER, warnings_of

__all__ = ["FolderBench"]

_SHORT = ("--workers", "1", "--format", "json")
_TOLD = ("params_sha256", "accuracy", "loss", "trials", "evaluation", "examples", "predictions", "probabilities")
"""What of the reports shows how the data were read."""


class FolderBench:
    """Says what comes of a folder: read, named, refused, or other answers than the same folder without its oddity.

    Args:
        plain: the folder without the oddity, of which a model is learned, which is put beside it.
        options: of ``dl4j train``.
        fields: the same in a Conf.
    """

    def __init__(self, plain: Path, capsys: Any, *, options: Sequence[str] = (), **fields: Any) -> None:
        self._plain, self._capsys, self._options, self._fields = plain, capsys, options, fields
        self._model = plain.with_suffix(".zip")
        self._wanted = {"train": self._digest("train", plain, "--out", self._model)[0]}
        self._loaded = load_model(self._model)

    def outcomes(self, odd: Path, ways: Sequence[str], one: Path | None = None, media: str = "") -> Iterator[Any]:
        """Yield the ways, each with what becomes of a folder; of ``one`` file in it, of a media type, by ``serve``."""
        for way in ways:
            if way == "data validate":
                status, out, err = self._run("data", "validate", odd)
                has_problems = "warning:" in err or "with the problems above" in out
                yield way, refusal(odd, status, out + err) or ("named" if has_problems else "read")
            elif way == "serve" and one is not None:
                yield way, self._served(self._plain / one.relative_to(odd), one, media)
            elif way != "serve":
                yield way, self._compared(way, odd)

    def _compared(self, way: str, odd: Path) -> str:
        if way not in self._wanted:
            self._wanted[way] = self._digest(way, self._plain)[0]
        found, is_named = self._digest(way, odd)
        if found == "refused":
            return "refused"
        return OTHER if found != self._wanted[way] else "named" if is_named else "read"

    def _digest(self, way: str, folder: Path, *more: object) -> tuple[Any, bool]:
        """Return what is equal if two folders are read alike, or that it is refused; and whether there is a warning."""
        fields = {"dataset": str(folder), "epochs": 1, **self._fields}
        if way == "Python":
            with warnings_of() as told:
                try:
                    source = prepare(Conf(**fields), frozenset(fields))[1]
                except Dl4jError as exc:
                    return refusal(folder, exc.exit_status, str(exc)), False
            return [part.features.tobytes() + part.labels.tobytes() for part in (source.train, source.test)], bool(told)
        search = self._model.with_suffix(".json")
        search.write_text(json.dumps({**json.loads(Conf(**fields).to_json()), "search": {"batch_size": [8]}}))
        words: dict[str, Sequence[object]] = {
            "train": ("train", folder, *self._options, "--epochs", 1, *_SHORT, *more),
            "tune": ("tune", search, "--trials", 1, *_SHORT),
            "evaluate": ("evaluate", self._model, "--split", "all", "--dataset", folder, "--format", "json"),
            "predict": ("predict", self._model, folder, "--format", "json"),
        }
        status, out, err = self._run(*words[way])
        if status:
            return refusal(folder, status, err), False
        report = json.loads(out)
        for trial in report.get("trials", ()):
            del trial["seconds"]
        return {name: report.get(name) for name in _TOLD}, "warning:" in err

    def _run(self, *words: object) -> tuple[int, str, str]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as leave:
            main.main([*map(str, words)])
        said = self._capsys.readouterr()
        return int(leave.value.code or 0), said.out, said.err

    def _served(self, plain: Path, odd: Path, media: str) -> str:
        answers, unknown = [], list[str]()
        with warnings_of() as logged:
            for file in (plain, odd):
                try:
                    found = read_body(self._loaded, media, file.read_bytes(), Limits(), Deadline(60), unknown)
                    answers.append(np.concatenate(list(found)))
                except (Dl4jError, RefusedError) as exc:
                    assert file == odd and "the body" in str(exc), exc
                    return "refused"
        if logged:
            return "named in the log, which clients could fill"
        return OTHER if not np.array_equal(*answers) else "named" if unknown else "read"


def refusal(folder: Path, status: int, said: str) -> str:
    """Return "refused" if the exit code says so, which is that of wrong data then, and the file is named; else ""."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    assert not status or (status == 3 and any(name in said for name in names)), said
    return "refused" if status else ""
