"""A password in the address of a search's storage is shown nowhere."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dl4jlegacy.cli.commands.tune import TuneOptions, _how_to_go_on
from dl4jlegacy.errors import ConfError, Dl4jError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.tuning import SearchOptions, SearchSpace, tune
from dl4jlegacy.tuning.storage_address import said_without, spoken_storage

ADDRESSES = (
    "postgresql://me:hunter2@127.0.0.1:1/studies",
    "mysql+pymysql://me:hunter2@host/studies?charset=utf8",
    "postgresql://me@host/studies?password=hunter2",
    "postgresql://me:hunter%402@host:port/studies",
    "nonsense://me:hunter2@host/studies",
    "sqlite://me:hunter2@host/no/such",
    "://me:hunter2@",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_error_shows_the_password_of_a_storage(address: str) -> None:
    space = SearchSpace.of({"batch_size": [8, 16]})
    with pytest.raises(Dl4jError) as refused:
        tune(Conf(model="mlp", dataset="iris", epochs=1), space, SearchOptions(trials=1, storage=address))
    for secret in ("hunter2", "hunter%402", "hunter@2"):
        assert secret not in str(refused.value)
    assert "storage" in str(refused.value)


def test_neither_do_the_command_that_goes_on_and_what_is_shown() -> None:
    options = TuneOptions(conf=Path("search.yaml"), storage=ADDRESSES[0])
    words = shlex.split(_how_to_go_on(options).split("`")[1])
    assert words[words.index("--storage") + 1] == "postgresql://me:...@127.0.0.1:1/studies"
    assert spoken_storage("trials.db") == "trials.db" and spoken_storage("") == ""
    assert "hunter2" not in json.dumps([spoken_storage(address) for address in ADDRESSES])


def test_what_a_driver_says_is_shown_without_the_password() -> None:
    said = said_without(ConfError("cannot parse 'hunter2@host' of\nmysql://me:hunter2@host"), ADDRESSES[1])
    assert "hunter2" not in said and said.startswith("cannot parse")
