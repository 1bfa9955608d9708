"""README and docs are true: commands that exist, links that lead somewhere, code that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dl4jlegacy.cli.main import declared
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.services.settings import HAZELCAST_PORT, ZOOKEEPER_PORT

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_ci_runs_exactly_the_readme_s_test_commands() -> None:
    everyday, long = (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().splitlines()[-2:]
    assert f"```sh\n{everyday.removesuffix(' || exit')}\n```" in README and f"```sh\n{long}\n```" in README


def test_the_first_block_leads_from_a_clone_to_a_trained_network() -> None:
    clone, train, *_ = blocks("sh")[0].splitlines()
    assert clone.startswith("git clone ")
    assert train.startswith("./install && .venv/bin/dl4j train ")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_that_are_there(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES[page].read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (PAGES[page].parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_named_in_code_font_exist(page: str) -> None:
    for name in re.findall(
        r"`((?:dl4jlegacy|examples|tests|benchmarks|docs)/[\w/.-]+)`", PAGES[page].read_text("utf-8")
    ):
        assert (ROOT / name).exists(), f"{page} names {name}"


def test_the_command_line_knows_every_flag_in_the_readme() -> None:
    text = PAGES["README.md"].read_text("utf-8")
    commands = re.findall(r"^ *(?:.*/)?dl4j (\w+)(.*)$", text, flags=re.MULTILINE)  # in blocks that are indented too
    assert len(commands) > 10
    offered = typer.main.get_command(declared()).commands
    for name, rest in commands:
        if name == "aws":  # tests/aws looks at those
            continue
        assert name in offered, f"there is no dl4j {name}"
        flags = {flag for option in offered[name].params for flag in (*option.opts, *option.secondary_opts)}
        for flag in re.findall(r"--[\w-]+", rest):
            assert flag in flags, f"dl4j {name} has no {flag}"


CLUSTER_PAGES = (
    "cluster",
    "cluster-inference",
    "cluster-programs",
    "when-something-fails",
    "lost-machine",
    "resume",
    "servers",
    "several-machines",
    "start-problems",
    "watch-a-run",
)
CODE = {
    page: "\n".join(code)  # of one page in order, as its reader types it
    for page, path in PAGES.items()
    if (code := blocks("python", path.read_text("utf-8")))
}
LEARNED = {
    "README.md": [("Accuracy", 0.95)],
    "docs/data-in-python.md": [("Accuracy", 0.93), ("R2", 0.98)],
    "docs/images.md": [("Accuracy", 1.0)],
    "docs/tensorboard.md": [("Accuracy", 0.9)],
    "docs/migrating-from-dl4j.md": [("Accuracy", 0.9)],
    "docs/networks.md": [("Accuracy", 0.9)],
    "docs/scikit-learn.md": [("Accuracy", 0.95), ("Accuracy", 0.93), ("R2", 0.35)],
    "docs/statistics.md": [("Accuracy", 0.9)],
    "docs/table-files.md": [("Accuracy", 0.9)],
    "docs/texts.md": [("Accuracy", 0.95)],
    "docs/train-in-place.md": [("F1", 0.93)],
    "docs/tuning.md": [("Accuracy", 0.85)],
}
"""How well each network that is trained on a page does, in the page's order, by what it prints."""
TRAINS = re.compile(r"(?:runner\.train|network\.(?:fit|pretrain|finetune)|(?:wrapper|pipeline|regressor)\.fit)\(")
PREDICTED = {"docs/data-in-python.md": "inner\nmiddle\nouter\n", "docs/scikit-learn.md": "same bits: True\n"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "README.md" else pytest.mark.long) for name in CODE]
)
def test_python_on_the_pages_runs_and_learns(name: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(CODE[name], encoding="utf-8")
    settings = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^ *(Accuracy|F1|R2): +([\d.]+)$", done.stdout, flags=re.MULTILINE)
    floors = LEARNED.get(name, [])
    assert len(found) == len(floors) == len(TRAINS.findall(CODE[name])), f"{name} trains without a floor: {done.stdout}"
    for (what, learned), (expected, floor) in zip(found, floors, strict=True):
        assert what == expected and float(learned) >= floor, f"{name}: {what} {learned}"
    assert PREDICTED.get(name, "") in done.stdout


def test_the_cluster_pages_name_the_ports_and_the_patience_that_the_code_has() -> None:
    page = {name: PAGES[f"docs/{name}.md"].read_text("utf-8") for name in CLUSTER_PAGES}
    conf = Conf()
    failures = page["when-something-fails"]
    [cut_off] = re.findall(r"^\| a worker is cut off from everything \|.*$", failures, flags=re.MULTILINE)
    assert (
        f"back within `--tracker-wait` ({conf.tracker_wait_seconds:g} s)" in cut_off
        and f"exit code {TrackerError.exit_status}" in cut_off
    )
    for text in (README, page["cluster"]):
        assert f"Hazelcast on 127.0.0.1:{HAZELCAST_PORT}, Zookeeper on 127.0.0.1:{ZOOKEEPER_PORT}" in text
    for text in (README, *page.values()):
        assert not re.search(r"(?<!=)HOST:PORT", text), "a recipe that cannot be pasted"
    everywhere = "".join((README, *page.values()))
    addresses = set(re.findall(r"(?:hazelcast://|--zookeeper |--master )\S+:(\d+)", everywhere))
    assert addresses == {str(HAZELCAST_PORT), str(ZOOKEEPER_PORT)}
    recipe = page["several-machines"]
    for line in ("Endpoint = ", "dl4j services up --host", "dl4j master ", "dl4j worker --zookeeper 10.7.0.1:2181"):
        assert line in recipe
