"""--missing: the words that stand for no value, in features and labels, wherever a table is learned and ever after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.datasets.tables.label_cells import listed_gaps
from dl4jlegacy.datasets.tables.text_rows import MISSING
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.serving.answers import CSV, Limits, read_body
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.training.run_data import load_new
from tests.datasets.test_label_cells import KINDS
from tests.support.table_files import write_table

ROWS = 60
DRAWN = np.random.default_rng(8)
SHORT = ("--model", "mlp", "--epochs", "1", "--workers", "1")


def table(number: Any, word: Any, label: Any) -> dict[str, list[Any]]:
    """Return a table with a gap in every tenth row of each column, as these are written."""
    a, b = DRAWN.normal(size=ROWS).round(3).tolist(), ["NA" if row % 3 else "x" for row in range(ROWS)]
    kind = [("ham", "NA", "spam")[row % 3] for row in range(ROWS)]
    for start, column, gap in ((0, a, number), (1, b, word), (2, kind, label)):
        for row in range(start, ROWS, 10):
            column[row] = gap
    return {"a": a, "b": b, "kind": kind}


@pytest.mark.parametrize("name", KINDS)
def test_listed_words_and_empty_cells_alone_are_gaps_in_every_kind_of_file(name: str, tmp_path: Path) -> None:
    """The same as a file with empty cells in their places; NA is a word then, and a class."""
    state = DRAWN.bit_generator.state
    write_table(tmp_path / name, {column: [*map(str, cells)] for column, cells in table(-999, "n.v.", "?").items()})
    listed, data = load_new(Conf(dataset=str(tmp_path / name)), label="kind", missing=("N.V.", "?", "-999"))
    DRAWN.bit_generator.state = state
    (tmp_path / "e").mkdir()
    empty = {
        column: ["" if cell is None else str(cell) for cell in cells]
        for column, cells in table(None, None, None).items()
    }
    write_table(tmp_path / "e" / name, empty)
    _, wanted = load_new(Conf(dataset=str(tmp_path / "e" / name)), label="kind", missing=())
    assert data.train == wanted.train and data.test == wanted.test
    assert data.label_names == ("NA", "ham", "spam")
    assert listed.transform is not None and {"n.v.", "?", "-999", "-999.0", ""} == set(listed.transform.missing)


def test_every_command_and_the_model_go_by_the_listed_words(tmp_path: Path, dl4j: Any) -> None:
    path, model = tmp_path / "t.csv", tmp_path / "m.zip"
    write_table(path, table(-999, "n.v.", "?"))
    chosen = ("--label", "kind", "--missing", "n.v.,?,-999")
    said = dl4j("data", "validate", path, *chosen)
    assert all(f"missing values in {name!r}" in said for name in ("a", "b", "kind"))
    schema = dl4j.json("data", "inspect", path, *chosen)["schema"]
    assert schema["missing"] == ["n.v.", "?", "-999", "-999.0", ""]
    report = dl4j.json("train", path, *chosen, *SHORT, "--out", model, "--checkpoint-dir", tmp_path / "c")
    assert report["accuracy"] > 0 and load_model(model).label_names == ("NA", "ham", "spam")
    search = tmp_path / "search.json"
    search.write_text(json.dumps({"dataset": str(path), "model": "mlp", "epochs": 1, "search": {"batch_size": [8]}}))
    dl4j("tune", search, *chosen, "--trials", 1, "--workers", 1, "--out", tmp_path / "tuned.zip")
    for kept in (model, tmp_path / "tuned.zip", tmp_path / "c"):
        transform = load_model(kept).reading.transform
        assert transform is not None and set(transform.missing) == {"n.v.", "?", "-999", "-999.0", ""}
    evaluated = dl4j.json("evaluate", model, "--dataset", path, "--split", "all")
    assert evaluated["examples"] == ROWS - 6
    rows = {"listed": "a,b\n-999,NA\n-999.0,x\n1,n.v.\n", "empty": "a,b\n,NA\n,x\n1,\n"}
    answers = []
    for kind, text in rows.items():
        (tmp_path / f"{kind}.csv").write_text(text)
        answers.append(dl4j.json("predict", model, tmp_path / f"{kind}.csv")["predictions"])
        served = read_body(load_model(model), CSV, text.encode(), Limits(), Deadline(60))
        answers.append(np.concatenate(list(served)).tolist())
    assert answers[:2] == answers[2:]


def test_no_words_leave_empty_cells_as_the_only_gaps(tmp_path: Path, dl4j: Any) -> None:
    path = tmp_path / "t.csv"
    write_table(path, table(None, None, None))
    found = dl4j.json("data", "inspect", path, "--label", "kind", "--missing", "")
    columns = {column["name"]: column for column in found["columns"]}
    assert [columns[name]["missing"] for name in ("a", "b", "kind")] == [6, 6, 6]
    assert columns["b"]["most_frequent"]["NA"] > 30
    assert listed_gaps(MISSING) != MISSING  # which would be those of features alone


def test_a_schema_that_lists_other_words_is_refused(tmp_path: Path, dl4j: Any) -> None:
    path, schema = tmp_path / "t.csv", tmp_path / "s.json"
    write_table(path, table(-999, "n.v.", "?"))
    dl4j("data", "inspect", path, "--label", "kind", "--missing", "n.v.,?,-999", "--out", schema)
    dl4j("train", path, "--schema", schema, "--missing", "?,-999,n.v.", *SHORT)
    said = dl4j("train", path, "--schema", schema, "--missing", "?", *SHORT, fails=3)
    assert "the schema lists 'n.v.', '?', '-999'" in said and "--missing '?'; leave one of them out" in said
    own = json.loads(schema.read_text())
    del own["missing"]  # one that lists none: the option says
    schema.write_text(json.dumps(own))
    dl4j("train", path, "--schema", schema, "--missing", "?,-999,n.v.", *SHORT)


def test_data_without_such_cells_refuse_the_option(tmp_path: Path) -> None:
    (tmp_path / "t.svm").write_text("1 1:2\n0 1:3\n" * 20)
    with pytest.raises(ConfError, match="SVMLight files have no cells that stand for no value"):
        load_new(Conf(dataset=str(tmp_path / "t.svm")), missing=("?",))
    with pytest.raises(DataError, match="--missing and --schema are for tables, and it is none"):
        load_new(Conf(dataset="iris"), missing=("?",))
