import gzip
import hashlib
import http.server
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.datasets import (
    CsvDataSetIterator,
    MnistDataSetIterator,
    data_directory,
    load,
    mnist,
    read_csv,
    read_idx,
    read_mnist,
)
from dl4jlegacy.datasets.tables import text_rows as text_files
from dl4jlegacy.errors import CloudError, DataError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def mnist_like(examples: int = 12, classes: int = 10) -> dict[str, bytes]:
    """The unpacked contents of four small files."""
    rng = np.random.default_rng(examples)
    contents = {}
    for name in NAMES:
        shape = (examples, 28, 28) if "images" in name else (examples,)
        values = rng.integers(0, 256, shape) if "images" in name else np.arange(examples) % classes
        contents[name] = idx(values)
    return contents


def write(folder: Path, contents: dict[str, bytes], *, zipped: bool = False, dotted: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        spelling = name.replace("-idx", ".idx") if dotted else name
        path = folder / (spelling + (".gz" if zipped else ""))
        path.write_bytes(gzip.compress(content) if zipped else content)


def accept(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes]) -> None:
    """Make ``contents`` the published MNIST."""
    monkeypatch.setattr(mnist, "_MD5", {name: hashlib.md5(content).hexdigest() for name, content in contents.items()})


def go_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mnist, "_MIRRORS", ((tmp_path / "no-such-mirror").as_uri() + "/",))


def csv_file(tmp_path: Path, text: str, name: str = "data.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


# --- IDX ---


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_idx_files_of_every_type_are_read(tmp_path: Path, code: int, dtype: str, zipped: bool) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    content = struct.pack(">BBBB2I", 0, 0, code, 2, 2, 3) + array.tobytes()
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(content) if zipped else content)
    read = read_idx(path)
    assert read.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("zipped", [False, True])
def test_an_idx_file_cut_at_any_byte_is_refused_by_name(tmp_path: Path, zipped: bool) -> None:
    content = idx(np.arange(24).reshape(2, 3, 4))
    content = gzip.compress(content) if zipped else content
    path = tmp_path / "images"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match="images"):
            read_idx(path)


def test_a_truncated_idx_file_says_how_many_bytes_were_expected_and_found(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx(np.zeros((10, 28, 28)))[:-100])
    with pytest.raises(DataError, match=r"truncated: its header asks for 7856 bytes .* found 7756"):
        read_idx(path)
    path.write_bytes(idx(np.zeros((10, 28, 28))) + b"x")
    with pytest.raises(DataError, match="too long"):
        read_idx(path)


def test_what_is_not_an_idx_file_is_refused_with_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "images"
    for content in (b"\x89PNG\r\n", b"\0\0\x07\x01", b"\0\0\x08\0", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not an IDX file"):
            read_idx(path)
    with pytest.raises(DataError, match="cannot read"):
        read_idx(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot read"):
        read_idx(tmp_path)


def test_an_idx_header_that_claims_terabytes_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(b"\0\0\x08\x03" + b"\xff" * 12)
    with pytest.raises(DataError, match="truncated"):
        read_idx(path)


# --- MNIST ---


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("folder", ["", "mnist"])
def test_mnist_is_found_under_every_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool, dotted: bool, folder: str
) -> None:
    contents = mnist_like()
    accept(monkeypatch, contents)
    write(tmp_path / folder, contents, zipped=zipped, dotted=dotted)
    train = read_mnist("train", data_dir=tmp_path)
    pixels = np.frombuffer(contents[NAMES[0]], np.uint8, offset=16).reshape(12, 784)
    np.testing.assert_array_equal(train.features, pixels.astype(np.float32) / 255)
    assert train.labels.shape == (12, 10) and train.classes.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_the_mnist_iterator_takes_examples_part_and_binarizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = mnist_like()
    accept(monkeypatch, contents)
    write(tmp_path, contents)
    monkeypatch.setenv("DL4J_DATA_DIR", str(tmp_path))
    iterator = MnistDataSetIterator(5, 10)
    assert (iterator.total_examples, iterator.total_batches, iterator.input_columns) == (10, 2, 784)
    test = MnistDataSetIterator(12, train=False, binarize=True, shuffle=False)
    pixels = np.frombuffer(contents[NAMES[2]], np.uint8, offset=16).reshape(12, 784)
    np.testing.assert_array_equal(test.batch(0, 0).features, pixels > 30)
    with pytest.raises(DataError, match=r"60,000 examples were asked for; .* holds 12"):
        MnistDataSetIterator(20, 60000)
    for part in (True, False):
        old, new = MnistDataSetIterator(5, part, 12345), MnistDataSetIterator(5, train=part, seed=12345)
        assert old.total_examples == 12
        np.testing.assert_array_equal(old.batch(1, 0).features, new.batch(1, 0).features)
    with pytest.raises(DataError, match="third argument is True, and not a seed; is binarize meant"):
        MnistDataSetIterator(5, 10, True)


def test_the_data_directory_is_argument_then_environment_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DL4J_DATA_DIR", "/from/environment")
    assert data_directory("/given") == Path("/given")
    assert data_directory() == Path("/from/environment")
    monkeypatch.delenv("DL4J_DATA_DIR")
    monkeypatch.setenv("HOME", "/somebody")
    assert data_directory() == Path("/somebody/.deeplearning4j")


def test_a_wrong_checksum_names_file_and_both_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_offline(monkeypatch, tmp_path)
    write(tmp_path, mnist_like())
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is not MNIST's .* expected 6bbc9ace"):
        read_mnist("train", data_dir=tmp_path)


def test_missing_files_offline_say_what_where_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_offline(monkeypatch, tmp_path)
    contents = mnist_like()
    accept(monkeypatch, contents)
    write(tmp_path, {NAMES[0]: contents[NAMES[0]]})
    with pytest.raises(DataError) as caught:
        load("mnist", data_dir=tmp_path)
    assert caught.value.exit_status == CloudError.exit_status  # another time it may succeed: a service tries again
    message = str(caught.value)
    assert NAMES[1] in message and NAMES[0] not in message
    assert str(tmp_path) in message and "no-such-mirror" in message and "DL4J_DATA_DIR" in message


def test_absent_files_are_downloaded_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = mnist_like()
    accept(monkeypatch, contents)
    write(tmp_path / "corrupt", {name: content[:-1] for name, content in contents.items()}, zipped=True)
    write(tmp_path / "good", contents, zipped=True)
    mirrors = tuple((tmp_path / name).as_uri() + "/" for name in ("absent", "corrupt", "good"))
    monkeypatch.setattr(mnist, "_MIRRORS", mirrors)
    home = tmp_path / "home"
    first = load("mnist", data_dir=home)
    assert sorted(path.name for path in (home / "mnist").iterdir()) == sorted(name + ".gz" for name in NAMES)
    go_offline(monkeypatch, tmp_path)
    assert load("mnist", data_dir=home).train == first.train


def test_a_failed_download_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / (NAMES[0] + ".gz")).write_bytes(b"<html>not found</html>")
    monkeypatch.setattr(mnist, "_MIRRORS", ((tmp_path / "mirror").as_uri() + "/",))
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_mnist("train", data_dir=tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_mnist_comes_encrypted_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(mirror.startswith("https://") for mirror in mnist._MIRRORS)
    contents = mnist_like()
    accept(monkeypatch, contents)

    class Redirects(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/there/"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(gzip.compress(contents[self.path.removeprefix("/there/").removesuffix(".gz")]))
            else:
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/there{self.path}")
                self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Redirects) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(mnist, "_MIRRORS", (f"http://127.0.0.1:{server.server_port}/",))
        try:
            with pytest.raises(DataError, match=r"leads to http://127\.0\.0\.1:\d+/there/.*not encrypted"):
                read_mnist("train", data_dir=tmp_path / "home")
        finally:
            server.shutdown()
            thread.join()
    assert not (tmp_path / "home").exists()


def test_what_is_downloaded_unpacks_to_no_more_than_mnist_could(tmp_path: Path, monkeypatch) -> None:
    bomb = bytes(65 << 20)
    accept(monkeypatch, dict.fromkeys(NAMES, bomb))
    packed = gzip.compress(bomb, 1)
    (tmp_path / "mirror").mkdir()
    for name in NAMES:
        (tmp_path / "mirror" / (name + ".gz")).write_bytes(packed)
    monkeypatch.setattr(mnist, "_MIRRORS", ((tmp_path / "mirror").as_uri() + "/",))
    with pytest.raises(DataError, match="unpack to more than 67108864"):
        read_mnist("train", data_dir=tmp_path / "home")
    assert not (tmp_path / "home").exists()
    (tmp_path / "mirror" / (NAMES[0] + ".gz")).write_bytes(gzip.compress(b"x" * 999)[:-6])
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_mnist("train", data_dir=tmp_path / "home")


def test_a_data_directory_that_cannot_be_written_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = mnist_like()
    accept(monkeypatch, contents)
    write(tmp_path / "mirror", contents, zipped=True)
    monkeypatch.setattr(mnist, "_MIRRORS", ((tmp_path / "mirror").as_uri() + "/",))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="incomplete"):
        read_mnist("train", data_dir=tmp_path / "file")


@pytest.mark.mnist
def test_the_real_mnist_has_its_known_size_and_first_labels(mnist_dir: str) -> None:
    source = load("mnist", data_dir=mnist_dir or None)
    assert source.train.features.shape == (60000, 784) and source.test.features.shape == (10000, 784)
    assert source.train.classes[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert source.test.classes[:5].tolist() == [7, 2, 1, 0, 4]
    assert float(source.train.features.max()) == 1.0
    assert float(source.train.features.mean()) == pytest.approx(0.1306604, abs=1e-4)


# --- CSV ---


def test_csv_with_class_numbers(tmp_path: Path) -> None:
    dataset, names = read_csv(csv_file(tmp_path, "1,2.5,0\n-3,4e2,2\n\n 5 ,6,1\n"))
    np.testing.assert_array_equal(dataset.features, [[1, 2.5], [-3, 400], [5, 6]])
    assert dataset.classes.tolist() == [0, 2, 1] and names == ("0", "1", "2")


def test_csv_with_header_names_and_label_anywhere(tmp_path: Path) -> None:
    text = "\ufeffa;Label;b\r\n1;dog;2\r\n3;'big; cat';4\r\n".replace("'", '"')
    dataset, names = read_csv(csv_file(tmp_path, text))
    np.testing.assert_array_equal(dataset.features, [[1, 2], [3, 4]])
    assert names == ("big; cat", "dog") and dataset.classes.tolist() == [1, 0]


def test_a_header_of_numbers_counts_as_one_if_it_names_the_label(tmp_path: Path) -> None:
    dataset, _ = read_csv(csv_file(tmp_path, "0\t1\tclass\n5\t6\t1\n"))
    assert dataset.features.tolist() == [[5, 6]] and dataset.n_out == 1


def test_csv_without_labels(tmp_path: Path) -> None:
    dataset, names = read_csv(csv_file(tmp_path, "1,2\n3,4\n"), labelled=False)
    assert dataset.features.tolist() == [[1, 2], [3, 4]] and dataset.n_out == 0 and names == ()
    dataset, _ = read_csv(csv_file(tmp_path, "a,b,label\n1,2,x\n"), labelled=False)
    assert dataset.features.tolist() == [[1, 2]]


def test_known_class_names_and_numbers_fix_the_outcomes(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "1,b\n2,c\n")
    dataset, names = read_csv(path, label_names=("a", "b", "c"))
    assert dataset.classes.tolist() == [1, 2] and dataset.n_out == 3 and names == ("a", "b", "c")
    with pytest.raises(DataError, match=r"line 2, column 2: label 'c' is unknown; known: a, b"):
        read_csv(path, label_names=("a", "b"))
    assert read_csv(csv_file(tmp_path, "1,2\n"), n_classes=10)[0].labels.shape == (1, 10)
    assert read_csv(csv_file(tmp_path, "1,2\n"), label_names=("0", "1", "2", "3"))[0].labels.shape == (1, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,0\n3,x,1\n", "line 2, column 2: 'x' is not a number"),
        ("1,abc,0\n3,4,1\n", "line 1, column 2: 'abc' is not a number"),
        ("label,a,b\n0,1,2\n1,2,x\n", "line 3, column 3: 'x' is not a number"),
        ("1,2,0\n3,,1\n", "line 2, column 2: the cell is empty"),
        ("1,2,0\n3,1\n", "line 2: 2 columns, the first line has 3"),
        ("1,2,0\n3,nan,1\n", "line 2, column 2: nan"),
        ("1,2,0\n\n-inf,2,1\n", "line 3, column 1: -inf"),
        ("1,1e300,0\n", "line 1, column 2: 1e\\+300"),
        ("1,2,0\n3,4,-1\n5,6,0\n", "line 2, column 3: label '-1' occurs once"),
        ("1,2,0\n3,4,1.5\n", "line 2, column 3: label '1.5' is a real number"),
        ("1,2,0\n3,4,1000\n5,6,0\n", "line 2, column 3: label '1000' occurs once"),
        ("1,2,\n3,4,\n", "the label 'column 3' has no value in any row"),
        ("1\n2\n", "only 1 column"),
        ("", "holds no examples"),
        ("a,b,label\n", "holds no examples"),
        ('1,"2,0\n', "not a CSV file"),
    ],
)
def test_bad_csv_names_file_line_column_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = csv_file(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_line_numbers_count_lines_of_the_file_not_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 6, column 1"):
        read_csv(csv_file(tmp_path, 'a,label\n1,"two\nlines"\n\n\nx,b\n'))


@pytest.mark.parametrize("content", [b"1,2\n\xff\xfe,3\n", b"1,2\n\x00,3\n", b"PK\x03\x04\xfa\x00\x00"])
def test_binary_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.csv"):
        load(path)


def test_a_line_that_is_too_long_is_refused_and_not_cut_into_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(text_files, "_LONGEST_LINE", 10)
    assert len(read_csv(csv_file(tmp_path, "111,222,1\n333,444,0\n"))[0]) == 2
    with pytest.raises(DataError, match="line 2 has more than 10 characters"):
        read_csv(csv_file(tmp_path, "111,222,1\n1111,2222,1\n"))
    with pytest.raises(DataError, match="line 1 has more than 10 characters"):
        read_csv(csv_file(tmp_path, "1,2,3,4,5,6\n"))


def test_a_label_beyond_the_given_number_of_classes_is_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label '3' is out of range: classes are whole numbers from 0 to 2"):
        CsvDataSetIterator(2, csv_file(tmp_path, "1,0\n2,3\n"), n_classes=3)
    with pytest.raises(DataError, match="has 2 classes"):
        read_csv(csv_file(tmp_path, "1,a\n2,b\n"), n_classes=1)


def test_the_csv_iterator_knows_its_label_names(tmp_path: Path) -> None:
    iterator = CsvDataSetIterator(2, csv_file(tmp_path, "1,a\n2,b\n3,a\n"))
    assert iterator.label_names == ("a", "b") and iterator.total_batches == 2


# --- load ---


def test_the_shipped_sets_hold_out_the_same_fifth_every_time() -> None:
    for name, sizes in (("digits", (1438, 359)), ("iris", (120, 30))):
        source, again = load(name), load(name)
        assert (len(source.train), len(source.test)) == sizes
        assert source.train == again.train and source.test == again.test
        assert source.name == name and len(source.label_names) == source.train.n_out
    assert load("digits").train.features.max() == 1.0


def test_a_folder_of_idx_files_is_read_without_checksums(tmp_path: Path) -> None:
    write(tmp_path, mnist_like(classes=4), zipped=True)
    source = load(tmp_path)
    assert source.train.labels.shape == (12, 4) and source.label_names == ("0", "1", "2", "3")


def test_a_class_that_only_the_test_part_has_is_out_of_range(tmp_path: Path) -> None:
    contents = mnist_like(classes=4)
    contents[NAMES[3]] = mnist_like(classes=6)[NAMES[3]]
    write(tmp_path, contents)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte .*: label 4 of example 4 is out of range"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (NAMES[1], None, f"lacks {NAMES[1]}"),
        (NAMES[1], idx(np.zeros(11)), r"\(12, 28, 28\) images and its label file \(11,\)"),
        (NAMES[1], idx(np.zeros((12, 1))), "must agree"),
        (NAMES[0], idx(np.zeros(12)), "must agree"),
        (NAMES[2], idx(np.zeros((12, 4, 4))), "784 pixels, test images 16"),
    ],
)
def test_idx_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    contents = mnist_like()
    if content is None:
        del contents[name]
    else:
        contents[name] = content
    write(tmp_path, contents)
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_a_folder_with_train_and_test_csv(tmp_path: Path) -> None:
    csv_file(tmp_path, "1,a\n2,b\n3,c\n", "train.csv")
    csv_file(tmp_path, "4,c\n", "test.csv")
    source = load(tmp_path)
    assert (len(source.train), len(source.test), source.label_names) == (3, 1, ("a", "b", "c"))
    assert source.test.classes.tolist() == [2]
    csv_file(tmp_path, "4,d\n", "test.csv")
    with pytest.raises(DataError, match=r"test\.csv, line 1, column 2: label 'd' is unknown"):
        load(tmp_path)
    csv_file(tmp_path, "4,4,c\n", "test.csv")
    with pytest.raises(DataError, match=r"has 1 feature, .* has 2"):
        load(tmp_path)


def test_a_folder_of_other_csv_files_is_one_data_set(tmp_path: Path) -> None:
    csv_file(tmp_path, "".join(f"{i},a\n" for i in range(10)), "one.csv")
    csv_file(tmp_path, "".join(f"{i},b\n" for i in range(10)), "two.csv")
    source = load(tmp_path)
    assert (len(source.train), len(source.test)) == (16, 4)
    csv_file(tmp_path, "1,2,b\n", "two.csv")
    with pytest.raises(DataError, match="same columns"):
        load(tmp_path)


def test_an_empty_or_foreign_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found nothing"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"found notes\.txt"):
        load(tmp_path)


def test_an_unknown_data_set_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'digit'; did you mean 'digits'"):
        load("digit")
    with pytest.raises(DataError, match="no such file or folder"):
        load(tmp_path / "absent.csv")
    for fraction in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(DataError, match="test fraction"):
            load("iris", test_fraction=fraction)
