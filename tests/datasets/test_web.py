"""Files of the Web as data and models: fetched once, asked for again, and what goes wrong on the way."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.errors import ConfError, DataError, DownloadError, ModelError
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.storage import web
from dl4jlegacy.system.clock import RunningClock

TABLE = "".join(f"{x},{x % 7},{'even' if x % 2 == 0 else 'odd'}\n" for x in range(60))


class Site:
    """A server of the Web: ``files`` by path; ``seen`` are its answers, ``what`` says how it answers."""

    def __init__(self) -> None:
        self.files = {"/table.csv": b"1,2\n3,4\n"}
        self.seen: list[tuple[str, int]] = []
        self.what = "well"
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *given: object) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        content = self.files.get(path)
        etag = f'"{hash(content)}"'
        code = 200
        if self.what == "broken":
            code = 503
        elif self.what.startswith("leads to "):
            code = 302
        elif content is None:
            code = 404
        elif handler.headers.get("If-None-Match") == etag:
            code = 304
        self.seen.append((path, code))
        if self.what == "gone":
            return
        handler.send_response(code)
        if code == 302:
            handler.send_header("Location", self.what.removeprefix("leads to "))
        if code == 200 and content is not None:
            handler.send_header("ETag", etag)
            handler.send_header("Content-Length", str(len(content) + 5 * (self.what == "short")))
        handler.end_headers()
        if code == 200 and content is not None:
            handler.wfile.write(content)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("DL4J_WEB_CACHE", str(tmp_path / "web"))
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        site.server.server_close()
        thread.join()


def test_a_file_is_fetched_once_and_again_when_it_has_changed(site: Site) -> None:
    url = site.url("/table.csv")
    first = Path(storage.local(url))
    assert first.name == "table.csv" and first.read_bytes() == b"1,2\n3,4\n"
    assert storage.local(url) == str(first)
    site.files["/table.csv"] = b"5,6\n"
    assert Path(storage.local(url)).read_bytes() == b"5,6\n"
    assert [code for _, code in site.seen] == [200, 304, 200]


def test_a_copy_whose_note_is_damaged_is_fetched_again(site: Site) -> None:
    copy = Path(storage.local(site.url("/table.csv")))
    [note] = [path for path in copy.parent.iterdir() if path != copy]
    note.write_bytes(note.read_bytes().replace(b'":"', b'":"\xe4'))
    assert storage.local(site.url("/table.csv")) == str(copy)
    assert [code for _, code in site.seen] == [200, 200]


def test_addresses_that_differ_after_the_question_mark_are_other_files(site: Site, caplog) -> None:
    one, other = (storage.local(site.url(f"/table.csv?key={key}")) for key in ("first-secret", "second-secret"))
    assert one != other and "secret" not in caplog.text + one + other


@pytest.mark.parametrize(
    ("what", "words"),
    [("broken", "answers 503"), ("short", "ended after 8 of 13 bytes"), ("gone", "closed connection without response")],
)
def test_what_cannot_be_had_now_is_the_copy_with_a_warning_or_an_error(
    site: Site, what: str, words: str, caplog, tmp_path: Path
) -> None:
    url = site.url("/table.csv")
    kept = Path(storage.local(url))
    (kept.parent / ".table.csv.json").write_text('{"etag": "older"}')
    site.what = what
    caplog.clear()
    assert storage.local(url) == str(kept) and kept.read_bytes() == b"1,2\n3,4\n"
    assert words in caplog.text and "the copy in" in caplog.text
    with pytest.raises(DownloadError, match=f"table.csv.* cannot be downloaded now: .*{words}.*; try again"):
        storage.local(f"{url}?other")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".table.csv.json", "table.csv"]


def test_a_server_that_says_nothing_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_TIMEOUT_SECONDS", 0.05)
    url = site.url("/table.csv")
    silent = threading.Event()
    monkeypatch.setattr(site, "answer", lambda handler: silent.wait(10))
    with pytest.raises(DownloadError, match="timed out"):
        storage.local(url)
    silent.set()


def test_a_server_that_is_silent_uses_up_its_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gap between two readings of the clock one second counts: it is read while the server says nothing."""
    was_read = threading.Event()

    class Watched(RunningClock):
        def now(self) -> float:
            if threading.current_thread().name == "clock":
                was_read.set()
            return super().now()

    def answer_late(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        if was_read.wait(10):
            handler.wfile.write(b"1,2\n")

    monkeypatch.setattr(web, "RUNNING", Watched())
    monkeypatch.setattr(site, "answer", answer_late)
    assert Path(storage.local(site.url("/table.csv"))).read_bytes() == b"1,2\n"


def test_a_download_that_hardly_moves_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(web, "_SLOWEST", 1e12)
    with pytest.raises(DownloadError, match="8 bytes came in 0 s"):
        storage.local(site.url("/table.csv"))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nothing.csv", r"http://127.0.0.1:\d+/nothing.csv cannot be had: its server answers 404"),
        ("/", "names no file"),
        ("/folder/..", "names no file"),
        ("/a%2F..%2Fb", "names no file"),
        ("/a%00b", "names no file"),
    ],
)
def test_an_address_of_no_file_is_a_data_error(site: Site, path: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        storage.local(site.url(path))


@pytest.mark.parametrize("address", ["https://me:hunter2@host/x.csv", "https://hunter2@host/x.csv"])
def test_no_password_comes_into_a_run_and_none_is_printed(address: str) -> None:
    with pytest.raises(DataError, match="has a name or password in it") as refused:
        storage.local(address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "query",
    ["X-Amz-Signature=hunter2&X-Amz-Date=1", "sv=1&sig=hunter2", "X-Goog-Signature=hunter2", "token=hunter2"],
)
def test_no_signed_address_comes_into_a_run_and_none_is_printed(query: str) -> None:
    with pytest.raises(DataError, match=r"x\.csv\?\.\.\. is signed") as refused:
        storage.local(f"https://host/x.csv?{query}")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("address", ["https://host:port/x.csv", "http://[::1/x.csv", "https://me:hunter2@host:port/x"])
def test_what_is_no_address_is_a_data_error(address: str) -> None:
    with pytest.raises(DataError, match="is no address") as refused:
        storage.local(address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirection_leads_to_the_web_only(site: Site, place: str) -> None:
    site.what = f"leads to {place}"
    with pytest.raises(DataError, match=r"leads to .*, which is not encrypted|Redirection to url .* is not allowed"):
        storage.local(site.url("/table.csv"))


def test_an_encrypted_address_stays_encrypted() -> None:
    request = web.urllib.request.Request("https://host/table.csv")
    with pytest.raises(DataError, match=r"http://other/table\.csv, which is not encrypted"):
        web._StaysEncrypted().redirect_request(request, None, 302, "Found", None, "http://other/table.csv")


def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(site: Site, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("DL4J_WEB_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written: Not a directory; name another folder in DL4J_WEB_CACHE"):
        storage.local(site.url("/table.csv"))


def test_nothing_is_ever_written_to_the_web() -> None:
    with pytest.raises(ModelError, match="where nothing is written; choose another --out"):
        storage.open_output("https://host/model.zip")
    with pytest.raises(ConfError, match="no folder that can be kept"):
        storage.open_folder("https://host/runs")


def test_a_table_and_a_model_of_the_web_are_trained_and_evaluated(site: Site, capsys, tmp_path: Path) -> None:
    site.files["/numbers.csv"] = TABLE.encode()
    url, model = site.url("/numbers.csv"), tmp_path / "model.zip"
    for words, code, said in (
        (["train", url, "--label", "-1", "--epochs", "2", "--workers", "2", "--out", str(model)], 0, "Accuracy"),
        (["evaluate", site.url("/model.zip"), "--dataset", url], 0, "Accuracy"),
        (["evaluate", site.url("/other.zip"), "--dataset", url], 3, "answers 404"),
    ):
        with pytest.raises(SystemExit) as left:
            main.main(words)
        assert (left.value.code or 0) == code and said in "".join(capsys.readouterr())
        site.files["/model.zip"] = model.read_bytes()
        if words[0] == "train":  # it looks at the table twice
            assert site.seen == [("/numbers.csv", 200)]
