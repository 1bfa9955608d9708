"""``docs/migrating-from-dl4j.md`` and ``docs/dl4j-names.md``: the names in their tables are where they say."""

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Iterator

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf
from dl4jlegacy.cli.commands import legacy
from dl4jlegacy.errors import UsageError
from dl4jlegacy.scaleout.tracker import StateTracker
from tests.support import REPOSITORY

PAGE = "".join(
    (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("migrating-from-dl4j.md", "dl4j-names.md")
)
NAME = re.compile(r"(?P<name>[A-Z]\w*[a-z]\w*|[A-Z]{3}|[a-z]+(?:_[a-z]+)+)(?P<attribute>\.[a-z_]+)?(?=$|\()")


def rows(section: str) -> list[list[str]]:
    """Return the columns of each row of a section's first table."""
    text = PAGE.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[column.strip() for column in line.strip("|").split("|")] for line in lines[2:]]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def named(java: str, here: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names that a row says are here, and the modules that it names."""
    said = quoted(here)
    modules = tuple(name.removesuffix(".py").replace("/", ".") for name in said if name.startswith("dl4jlegacy"))
    texts = [text for text in said if not text.startswith(("-", "dl4j", "new "))]
    for text in [*texts, *(quoted(java) if re.search("the same|the first", here) else [])]:
        match = NAME.match(text)
        if match is not None:
            yield match["name"] + (match["attribute"] or ""), modules


NAMES = sorted(
    {found for section in ("Classes", "From Spark") for java, here in rows(section) for found in named(java, here)}
)


def test_the_tables_are_read() -> None:
    names = {name for name, _ in NAMES}
    assert {"ActorNetworkRunner", "MasterActor", "write_model", "ROC", "EarlyStoppingTrainer", "ModelSaver"} <= names
    assert len(names) > 50


@pytest.mark.parametrize(("name", "modules"), NAMES, ids=[name for name, _ in NAMES])
def test_what_a_table_names_can_be_imported_from_where_it_says(name: str, modules: tuple[str, ...]) -> None:
    first, _, attribute = name.partition(".")
    if not attribute and first in Conf.__struct_fields__:
        return
    places = [importlib.import_module(place) for place in (*modules, "dl4jlegacy")]
    found = [getattr(place, first) for place in places if hasattr(place, first)]
    assert found, f"{first} is in none of {[place.__name__ for place in places]}"
    assert not attribute or hasattr(found[0], attribute)


def test_the_tracker_has_the_methods_of_the_page() -> None:
    names = [name.partition("(")[0] for _, here in rows("The tracker's methods") for name in quoted(here)]
    methods = [name for name in names if re.fullmatch("[a-z_]+", name)]
    assert len(methods) > 8
    assert [name for name in methods if not hasattr(StateTracker, name)] == []


def test_conf_has_the_fields_of_the_page() -> None:
    fields = set(
        re.findall(
            r"Conf\.([a-z_]+)", " ".join(here for *_, here in rows("Fields of `Conf` and `NeuralNetConfiguration`"))
        )
    )
    fields |= set(re.findall(r"\bConf\(([a-z_]+)=", PAGE))
    assert len(fields) > 6
    assert fields - set(Conf.__struct_fields__) == set()


def test_the_page_has_every_flag_of_2014_with_its_default() -> None:
    defaults = vars(legacy._parser().parse_args([]))
    seen = set()
    for flags, default, _ in rows("Flags of `actor-network-runner`"):
        names = [flag.removeprefix("-") for flag in quoted(flags)]
        seen |= set(names)
        texts = [default] if len(names) == 1 or default.count(",") != len(names) - 1 else default.split(",")
        for name, text in zip(names, texts * len(names), strict=False):
            value = defaults[name]
            shown = (
                "" if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
            )
            assert shown == text.strip(), f"-{name} is {shown!r} by default, and the page says {text!r}"
    assert seen == set(defaults) - {"out", "use", "stay"}  # ours, which the page names beside the table


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("conf.set_multi_layer_clazz", r"make it with Conf\(multi_layer_clazz=...\)"),
        ("conf.setMultiLayerClazz", r"make it with Conf\(multi_layer_clazz=...\)"),
        ("conf.getMasterUrl", "workers need its state_tracker_connection_string"),
        ("conf.master_url", "workers need its state_tracker_connection_string"),
        ("conf.wrokers", "a Conf has no 'wrokers'"),
    ],
)
def test_a_setter_or_getter_of_old_says_what_there_is_instead(line: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        operator.attrgetter(line.removeprefix("conf."))(Conf())


def test_an_address_in_the_place_of_the_iterator_says_what_it_is_called() -> None:
    with pytest.raises(UsageError, match="takes no iterator: it needs zookeeper='host:port'"):
        ActorNetworkRunner("worker", "10.7.0.1")
