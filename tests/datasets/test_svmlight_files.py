"""SVMLight and LIBSVM files: the numbers in them, which features they have, and what is said of wrong lines."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from dl4jlegacy.datasets import load
from dl4jlegacy.datasets.tables import stored_tables
from dl4jlegacy.datasets.tables.stored_tables import is_large
from dl4jlegacy.datasets.tables.svmlight_files import sparse_blocks, survey
from dl4jlegacy.datasets.tables.svmlight_schema import svmlight_schema
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import DataError


def rows_of(content: str | bytes, chunk: int = 1 << 20) -> tuple[list[float], list[int], list[float]]:
    raw = content.encode() if isinstance(content, str) else content
    found = list(sparse_blocks(io.BytesIO(raw), "a.svm", chunk=chunk))
    labels = np.concatenate([block.labels for block in found]).tolist()
    indices = np.concatenate([block.indices for block in found]).tolist()
    return labels, indices, np.concatenate([block.values for block in found]).tolist()


def random_file(path: Path, *, zero_based: bool, rows: int = 300, columns: int = 23) -> None:
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, columns)) * 10.0 ** random.integers(-20, 20, size=(rows, columns))
    x[random.random((rows, columns)) < 0.7] = 0
    x[0, 0] = x[0, -1] = 0.1 + 0.2
    queries = random.integers(0, 5, size=rows)
    dump_svmlight_file(
        x, random.normal(size=rows), str(path), zero_based=zero_based, query_id=queries, comment="made\nup"
    )


@pytest.mark.parametrize("zero_based", [False, True])
def test_numbers_are_those_of_scikit_learn_bit_for_bit(tmp_path: Path, *, zero_based: bool) -> None:
    path = tmp_path / "a.svm"
    random_file(path, zero_based=zero_based)
    x, y = load_svmlight_file(str(path), zero_based=zero_based)
    schema = svmlight_schema([path], regression=True)
    table = schema.read(path)
    np.testing.assert_array_equal(np.stack(list(table.columns.values()), axis=1), x.toarray())
    np.testing.assert_array_equal(table.labels, y)
    assert next(iter(table.columns)) == ("0" if zero_based else "1") and len(table.columns) == 23
    packed = tmp_path / "b.libsvm.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    features, expected = schema.features(schema.read(packed)), x.toarray().astype(np.float32)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, expected)


def test_several_labels_are_those_of_scikit_learn(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1,3 1:0.5\n3 2:1\n0,1,3 1:2 # all\n", encoding="utf-8")
    expected = load_svmlight_file(str(path), multilabel=True)[1]
    schema = svmlight_schema([path], multi_label=True)
    labels = schema.read(path).labels
    assert schema.labels == ("label 0", "label 1", "label 3") and labels is not None
    found = [tuple(n for n, there in zip((0.0, 1.0, 3.0), row, strict=True) if there) for row in labels.tolist()]
    assert found == [tuple(sorted(labels)) for labels in expected]
    with pytest.raises(DataError, match=r"a\.svm, line 1: 2 labels, 1,3, and a class.* --multi-label"):
        load(path)


def test_pieces_of_any_size_give_the_same_rows() -> None:
    text = "\ufeff# first\n+1 qid:3 1:.5 7:1e-3\r\n\n  -1\t2:2. # 9:9\n0\n# 5\n\n1 1:1 2:-2.5E+1"
    expected = [1, -1, 0, 1], [1, 7, 2, 1, 2], [0.5, 0.001, 2.0, 1.0, -25.0]
    for chunk in (4, 11, 50, 1000):  # bytes
        assert rows_of(text, chunk) == expected
    [block] = sparse_blocks(io.BytesIO(f"{text}\n".encode()), "a.svm")
    assert block.lines.tolist() == [2, 4, 5, 8] and block.pair_counts.tolist() == [2, 1, 0, 2]
    assert block.between(1, 4).indices.tolist() == [2, 1, 2] and block.line_of_pair(2) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 1:1\n0 3:1 2:5\n", "line 2: index 2 stands behind index 3; the indices of a line ascend"),
        ("1 1:1\n\n0 3:1 3:5\n", "line 3: index 3 is there twice"),
        ("1 1:1\n0 1:abc\n", "line 2: index 1: 'abc' is not a number; correct it, or leave the pair out"),
        ("1 1:1 2:nan\n", "line 1: index 2: 'nan' is not a finite number"),
        ("1 1:-Inf\n", "line 1: index 1: '-Inf' is not a finite number"),
        ("1 2:1e999\n", "line 1, index 2: the value is not a finite number in float64"),
        ("1 -1:2\n", "line 1: index -1 in '-1:2' is negative; indices are whole numbers from 1, or from 0"),
        ("1 1.5:2\n", "line 1: index '1.5' in '1.5:2' is not a whole number"),
        ("1 1:2\n1:3 2:4\n", "line 2: the line begins with '1:3', and its label is absent"),
        ("1 1:2\ncat 2:4\n", "line 2: the label 'cat' is not a number"),
        ("nan 2:4\n", "line 1: the label 'nan' is not a finite number"),
        ("1e999 2:4\n", "line 1: the label is not a finite number"),
        ("1 1:2 7\n", "line 1: '7' is no index:value pair"),
        ("1 1:2 qid:7\n", "line 1: 'qid:7' is no number of a query behind the label"),
        ("1 1:1.2.3\n", "line 1: index 1: '1.2.3' is not a number"),
        ("1 1:\n", "line 1: index 1: '' is not a number"),
        ("1 1:1_0\n", "line 1: index 1: '1_0' is not a number"),
        ("1, 1:1\n", "line 1: the label '1,' is not a number"),
        ("", "holds no examples; expected a label and index:value pairs on each line"),
        ("# nothing\n\n", "holds no examples"),
    ],
)
def test_a_wrong_line_is_named_with_its_value(text: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        rows_of(text)
    assert "a.svm" in str(caught.value) and said in str(caught.value)


def test_what_fits_no_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n0 1:2 4000000000:1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.svm, line 2: index 4,000,000,000 makes a dense table of 4,0"):
        survey([path])
    path.write_text("1\n0\n", encoding="utf-8")
    with pytest.raises(DataError, match="no index:value pair"):
        load(path)
    path.write_text("1 90000:1\n0 1:2\n" * 60, encoding="utf-8")
    assert is_large([path]) and is_large([path], 90_001) and not is_large([path], 50)
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_tables.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10 << 20))
    with pytest.raises(DataError, match=r"a table of 120 rows and 90,001 columns .* needs 0\.2 GiB of .* 0\.0 are"):
        load(path)


def test_rows_are_read_as_those_that_the_schema_was_made_of(tmp_path: Path) -> None:
    first, other = tmp_path / "a.svm", tmp_path / "b.svm"
    first.write_text("-1 1:1 4:2\n+1 3:1\n-1 2:1\n1.0 1:9\n", encoding="utf-8")
    schema = svmlight_schema([first], label_names=["-1", "1"])
    other.write_text("1 1:5\n-1 2:7\n", encoding="utf-8")
    assert schema.features(schema.read(other)).tolist() == [[5, 0, 0, 0], [0, 7, 0, 0]]
    assert schema.class_numbers(schema.read(first)).tolist() == [0, 1, 0, 1]
    other.write_text("1 1:5\n-1 5:7\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.svm, line 2: index 5 is larger than 4, the largest in the data"):
        schema.read(other)
    other.write_text("1 0:5\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.svm, line 1: index 0, and the data .* count from 1"):
        schema.read(other)
    assert TransformProcess.from_json(schema.to_json()) == schema
    other.write_text("1 0:5 4:1\n1 3:1\n", encoding="utf-8")
    both = svmlight_schema([first, other])
    assert both.features(both.read(first))[0].tolist() == [0, 1, 0, 0, 2]  # 0 in any file: all count from 0


def test_parts_of_a_data_set_have_the_features_of_all(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_text("0 1:1\n1 2:1\n0 1:2\n1 2:3\n", encoding="utf-8")
    (tmp_path / "test.svm").write_text("0 1:1\n1 3:1\n", encoding="utf-8")
    source = load(tmp_path)
    assert source.train.features.shape == (4, 3) and source.test.features.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert source.label_names == ("0", "1") and source.train.labels.tolist() == [[1, 0], [0, 1]] * 2
