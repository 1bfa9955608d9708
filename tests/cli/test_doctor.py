"""``dl4j doctor``: a line or an object for each check, an exit status for scripts, and ``--fix`` for what is safe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from dl4jlegacy.cli import main
from dl4jlegacy.cli.commands.doctor import variables
from dl4jlegacy.doctor import Check, Settings, checks
from dl4jlegacy.doctor.check import failed, ok, skipped, warning
from tests.support import REPOSITORY

pytestmark = pytest.mark.usefixtures("here")
STATUSES = ("ok", "warning", "failed", "skipped")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what puts a few checks in the place of all: (name, finding, whether it is needed)."""

    def put(*given: tuple[str, Any, bool]) -> None:
        made = tuple(
            Check(name, "Area", lambda s, f=finding: f, is_needed=lambda s, n=needed: n)
            for name, finding, needed in given
        )
        monkeypatch.setattr("dl4jlegacy.doctor.all_checks", lambda: made)

    return put


def doctor(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DL4J_", "AWS_"))}
    path = os.pathsep.join(filter(None, (environment.pop("PYTHONPATH", ""), str(REPOSITORY))))
    quiet = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(folder), "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-m", "dl4jlegacy", "doctor", *options],
        env={**inherited, **quiet, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_all_checks_are_done_and_said_as_one_object(here: Path) -> None:
    done = doctor(here, "--format", "json", DL4J_SECRET="hunter2hunter2hunter2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1 and "hunter2" not in done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert len(found["checks"]) >= 35 and len({each["name"] for each in found["checks"]}) == len(found["checks"])
    assert {status: found[status] for status in STATUSES} == {
        status: sum(each["status"] == status for each in found["checks"]) for status in STATUSES
    }
    fields = {"name", "area", "status", "found", "remedy", "needed", "mended", "seconds"}
    assert all(each.keys() == fields and each["found"] for each in found["checks"])
    assert all(each["remedy"] for each in found["checks"] if each["status"] in ("warning", "failed"))
    by_name = {each["name"]: each for each in found["checks"]}
    assert by_name["secret"]["found"] == "it has 21 bytes"
    assert by_name["compiled kernels"]["status"] == by_name["imports"]["status"] == "ok"
    assert not any("check itself" in each["found"] for each in found["checks"])
    assert [each.name for each in here.iterdir() if each.name not in (".cache", ".nv")] == []  # nothing was made


def test_text_has_a_line_for_each_check_and_what_to_do_below_it(dl4j: Any, only: Any) -> None:
    only(
        ("one", ok("fine"), True),
        ("the other", warning("it is so " + "very " * 40 + "old", "renew it"), True),
        ("none", skipped("nothing there"), False),
    )
    lines = dl4j("doctor").splitlines()
    assert lines[:3] == ["", "Area", "  ok       one        fine"]
    assert lines[3].startswith("  warning  the other  it is so very") and lines[4].startswith(" " * 22 + "very")
    assert lines[6:8] == [" " * 22 + "-> renew it", "  skipped  none       nothing there"]
    assert max(map(len, lines)) <= 110
    assert lines[-1] == "3 checks: 1 ok, 1 warning, 0 failed, 1 skipped"


def test_the_exit_status_says_whether_something_failed_that_is_needed(dl4j: Any, only: Any) -> None:
    only(("a", failed("gone", "mend it"), False), ("b", warning("old", "renew it"), True))
    assert "1 failed" in dl4j("doctor")
    only(("a", failed("gone", "mend it"), True), ("b", ok("well"), True))
    said = dl4j("doctor", fails=11)
    assert said == "error [DL4J-DOCTOR]: 1 check failed of what a run needs: a\n"


def test_an_object_with_a_failure_has_the_error_in_it(only: Any, capsys: pytest.CaptureFixture[str]) -> None:
    only(("a", failed("gone", "mend it"), True))
    with pytest.raises(SystemExit) as leave:
        main.main(["doctor", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert leave.value.code == found["error"]["exit"] == 11
    assert (found["error"]["code"], found["checks"][0]["status"]) == ("DL4J-DOCTOR", "failed")


def test_what_is_named_on_the_command_line_is_needed(here: Path) -> None:
    """A server that is not there, and a folder that is a file: each fails, and what needs it names that cause."""
    (here / "data").write_text("")
    servers = ("--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", "127.0.0.1:1", "--data-dir", "data")
    done = doctor(here, *servers, "--device", "gpu", "--format", "json", CUDA_VISIBLE_DEVICES="")
    found = json.loads(done.stdout)
    by_name = {each["name"]: each for each in found["checks"]}
    assert done.returncode == 11
    for name in ("tracker", "Zookeeper", "data folder"):
        assert by_name[name]["status"] == "failed" and by_name[name]["needed"], by_name[name]
        assert name in found["error"]["message"]
    assert by_name["Zookeeper session"]["found"] == "Zookeeper has failed"
    assert any(by_name[name]["status"] == "failed" for name in ("GPU driver", "CuPy", "GPUs"))


def test_a_library_that_is_missing_is_reported_and_the_rest_is_looked_at(here: Path) -> None:
    (here / "broken").mkdir()
    (here / "broken/kazoo.py").write_text("raise ImportError('it is gone')")
    options = ("--zookeeper", "127.0.0.1:1", "--format", "json")
    done = doctor(here, *options, PYTHONPATH=str(here / "broken"))
    assert done.returncode == 11, done.stderr
    by_name = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert "kazoo: ImportError it is gone" in by_name["imports"]["found"]
    assert "kazoo.py is in the way of kazoo" in by_name["shadows"]["found"]
    assert by_name["cluster"]["status"] == "failed" and "ImportError: it is gone" in by_name["cluster"]["found"]
    assert by_name["memory"]["status"] in ("ok", "warning")


def test_fix_creates_folders_that_are_missing_and_nothing_else(dl4j: Any, here: Path, monkeypatch: Any) -> None:
    from dl4jlegacy.doctor import folders

    kept = tuple(check for check in folders.CHECKS if check.name in ("data folder", "MNIST"))
    monkeypatch.setattr("dl4jlegacy.doctor.all_checks", lambda: kept)
    assert "does not exist" in " ".join(dl4j("doctor", "--data-dir", "some/data").split())  # lines are wrapped
    assert list(here.iterdir()) == []
    said = " ".join(dl4j("doctor", "--data-dir", "some/data", "--fix").split())
    assert f"mended: created {here / 'some/data'}" in said and "0 failed" in said
    assert sorted(here.rglob("*")) == [here / "some", here / "some/data"]
    assert "mended" not in dl4j("doctor", "--data-dir", "some/data", "--fix")


@pytest.mark.long
def test_a_damaged_cache_of_kernels_is_found_and_mended(here: Path) -> None:
    variables = {"NUMBA_CACHE_DIR": str(here / "kernels")}
    assert doctor(here, **variables).returncode == 0
    files = sorted((here / "kernels").rglob("*.nb?"))
    files[0].write_bytes(b"")
    files[-1].write_bytes(files[-1].read_bytes()[:100])
    done = doctor(here, "--format", "json", **variables)
    by_name = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0 and "2 files of" in by_name["kernel cache"]["found"]
    assert by_name["kernel cache"]["status"] == "warning" and by_name["compiled kernels"]["status"] == "ok"
    done = doctor(here, "--fix", "--format", "json", **variables)
    by_name = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0 and by_name["kernel cache"]["mended"].startswith("removed 2 damaged files")
    assert by_name["compiled kernels"]["status"] == "ok"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tracker", "127.0.0.1:5701"), "hazelcast://host:port"),
        (("--zookeeper", "127.0.0.1"), "host:port"),
        (("--clock", "ftp://example.org"), "https://example.org"),
        (("--clock", " "), "empty"),
        (("--device", "gpus"), "did you mean 'gpu'"),
        (("--format", "yaml"), "known: json, text"),
    ],
)
def test_options_that_mean_nothing_are_usage_errors(dl4j: Any, options: tuple[str, ...], words: str) -> None:
    assert words in dl4j("doctor", *options, fails=2)


def test_every_variable_that_the_package_reads_is_known() -> None:
    sources = "\n".join(path.read_text() for path in (REPOSITORY / "dl4jlegacy").rglob("*.py"))
    named = set(re.findall(r"\b(DL4J_[A-Z]+(?:_[A-Z]+)*)\b", sources)) - {"DL4J_WORKRES"}
    assert named <= variables(typer.main.get_command(main.declared()))


def test_a_room_of_checks_that_cannot_be_imported_is_one_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dl4jlegacy.doctor.network", None)
    [network] = [check for check in checks.all_checks() if check.area == "Network"]
    finding = network.look(Settings())
    assert finding.status == "failed" and "dl4jlegacy.doctor.network" in finding.found and network.is_needed(Settings())
