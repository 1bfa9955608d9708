"""What is fuzzed: every format that is read, every server, the environment; each with its share of the inputs."""

from __future__ import annotations

import contextlib
import functools
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dl4jlegacy.nn import MultiLayerNetwork, write_model, zoo
from tests.fuzz.codecs import CODECS
from tests.fuzz.commands import OUT, Attempt, answer
from tests.fuzz.environment import with_environment
from tests.fuzz.formats import FORMATS
from tests.fuzz.servers import SERVERS

__all__ = ["SUBJECTS", "Subject"]

_FOREIGN = b"memory-of-others"


@dataclass(frozen=True)
class Subject:
    """Something that is given hostile input.

    Attributes:
        begun: makes, in this folder, what its cases need; yields what tries one.
        weight: its share of the inputs, beside others.
    """

    begun: Callable[[], contextlib.AbstractContextManager[Attempt]]
    weight: int


def _spray() -> None:
    """Leave a text in memory that is free again: who reads beyond his own may come upon it."""
    blocks = [bytearray(_FOREIGN * (1 << shift)) for shift in range(10) for _ in range(4)]
    del blocks


def _word(word: str, path: Path) -> str:
    if word in (".", "run", "good.csv"):
        return str(Path("case", "" if word == "." else word))
    return word.replace("{}", str(path))


@contextlib.contextmanager
def _files(name: str) -> Iterator[Attempt]:
    """Yield what mutates a file of a format, and runs a command that reads it."""
    form = FORMATS[name]
    write_model(MultiLayerNetwork(zoo.mlp(4, 3, hidden=(3,))), "mlp.zip", label_names=("a", "b", "c"))
    Path("numbers.csv").write_text("1,2,3,4\n5,6,7,8\n")
    genuine = dict(form.genuine(Path("sound")))

    def attempt(rng: random.Random) -> tuple[int, str]:
        shutil.rmtree(OUT, ignore_errors=True)
        Path(OUT).mkdir()
        shutil.rmtree("case", ignore_errors=True)
        if Path("sound").is_dir():
            shutil.copytree("sound", "case")
        chosen = rng.choice(sorted(genuine))
        path = Path("case", chosen)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(form.mutate(genuine[chosen], rng))
        command = [_word(word, path) for word in rng.choice(form.commands)]
        _spray()
        found = answer([*command, "--format", rng.choice(("text", "json"))])
        fault = "memory of others" if _FOREIGN.decode() in found.out + found.err else found.fault
        return found.status, f"{command}: {fault}: {found.err[-3000:]}" if fault else ""

    yield attempt


SUBJECTS: Mapping[str, Subject] = {
    **{name: Subject(functools.partial(_files, name), form.weight) for name, form in FORMATS.items()},
    **{name: Subject(begun, 6) for name, begun in CODECS.items()},
    **{name: Subject(begun, {"model server": 12, "dashboard": 6}.get(name, 2)) for name, begun in SERVERS.items()},
    "environment": Subject(with_environment, 10),
}
