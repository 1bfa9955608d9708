"""The registry of the kinds of data: every reader has its kind, and options have the names of the reader's fields."""

from __future__ import annotations

import dataclasses

import msgspec

from dl4jlegacy.cli.options.read import TrainOptions
from dl4jlegacy.datasets.reading import DATA_KINDS, Readers


def test_every_reader_of_a_conf_has_its_kind_and_every_kind_its_reader() -> None:
    readers = {field.name: field.type for field in msgspec.structs.fields(Readers) if field.name != "transform"}
    assert readers == {kind.name: kind.reader | None for kind in DATA_KINDS}


def test_options_have_the_names_of_the_fields_that_they_set() -> None:
    options = {field.name for field in dataclasses.fields(TrainOptions)}
    for kind in DATA_KINDS:
        assert set(kind.options) <= options & set(kind.reader.__struct_fields__), kind.name


def test_an_option_that_is_not_given_chooses_no_kind_and_one_that_is_given_chooses_one() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(TrainOptions)}
    names = [name for kind in DATA_KINDS for name in kind.options]
    assert len(names) == len(set(names)) and not {"label", "regression", "multi_label", "missing"} & set(names)
    assert [name for name in names if defaults[name] is not None] == []


def test_no_two_kinds_claim_the_same_files() -> None:
    endings = [ending for kind in DATA_KINDS for ending in kind.endings]
    assert len(endings) == len(set(endings))
