"""YAML that people write: read as version 1.2 says, and written so that no version reads something else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from dl4jlegacy import Conf
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.conf.text import decode_yaml
from dl4jlegacy.nn.conf.yaml_text import load_yaml, write_yaml

READ: dict[str, Any] = {
    "1e-3": 0.001,
    "-2E+4": -20000.0,
    ".5": 0.5,
    "1.": 1.0,
    "012": 12,
    "0o14": 12,
    "0x1F": 31,
    "+3": 3,
    "true": True,
    "FALSE": False,
    "null": None,
    "~": None,
    "": None,
    "-.inf": -math.inf,
    "2026-11-29": "2026-11-29",
    "1:30": "1:30",
    "1_000": "1_000",
    "0b1": "0b1",
    "y": "y",
    "'yes'": "yes",
    '"on"': "on",
}


@pytest.mark.parametrize("text", READ)
def test_plain_values_are_those_of_the_core_schema(text: str) -> None:
    [found] = load_yaml(f"- {text}")
    assert (type(found), found) == (type(READ[text]), READ[text])


@pytest.mark.parametrize("text", ["on", "no", "Yes", "off", "2019", "1.10", "true", "null", "012", "1e3"])
def test_a_key_is_the_text_that_stands_there(text: str) -> None:
    assert load_yaml(f"{text}: 1\nother: {{{text}: 2}}") == {text: 1, "other": {text: 2}}


@pytest.mark.parametrize(("text", "boolean"), [("yes", "true"), ("On", "true"), ("no", "false"), ("OFF", "false")])
def test_what_only_yaml_1_1_takes_for_a_boolean_is_refused_with_the_remedy(text: str, boolean: str) -> None:
    with pytest.raises(yaml.YAMLError, match=f"{text} is {boolean} in YAML 1.1 .* write {boolean}, or '{text}' in qu"):
        load_yaml(f"a: [1, {text}]")
    with pytest.raises(ConfError, match=f"Conf: this is no YAML: {text} is {boolean} .* line 1, column 20"):
        decode_yaml(f"average_statistic: {text}", Conf)


def test_a_number_is_one_where_no_type_is_known() -> None:
    conf = decode_yaml("router_args: {tau: 1e-3, on: 2}\nvalidation: null", Conf)
    assert conf.router_args == {"tau": 0.001, "on": 2}


@pytest.mark.parametrize("text", [*READ, "no", "ON", "n", "<<", "=", "1.0e+2", "1e3", "0777", "a: b", "- a", "#", "é"])
def test_texts_are_written_so_that_both_versions_read_them(text: str) -> None:
    written = write_yaml({text: text, "list": [text, 1e-05, 3, True, None]})
    assert load_yaml(written) == yaml.safe_load(written) == {text: text, "list": [text, 1e-05, 3, True, None]}
