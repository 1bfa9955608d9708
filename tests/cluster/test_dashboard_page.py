"""The dashboard's page from end to end: a run of four workers on a cluster, watched and stopped in a real browser.

The screenshots in the documentation are made by it: ``SCREENSHOTS_TO=docs/assets`` has it write them there.
"""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.browser import Browser, shows, text_of
from tests.support.cluster_commands import Cluster, Command, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

RUN = ["--model", "mlp", "--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--validation", "0.2"]
EPOCHS = "400"
"""More than it ever gets to."""
NAMED = "import socket; socket.gethostname = lambda: {!r}"
"""A process that takes its machine for one of this name, as it would be on a cluster."""
SCORE = "document.querySelector('#chart-score path.curve')?.getAttribute('d')"
WORKERS = "[...document.querySelectorAll('#workers tr')]"
MOST_COLOURS = 64


def dashboard_of(cluster: Cluster) -> tuple[Command, str]:
    """Start the command that shows the run; return it and its address."""
    command = cluster.start("dashboard", "--zookeeper", cluster.zookeeper, "--port", "0", "--format", "json")
    until(lambda: command.out().endswith("\n") or command.process.poll() is not None)
    said = json.loads(command.out())
    return command, f"{said['url']}#token={Path(said['token_file']).read_text().strip()}"


def keep_screenshots(browser: Browser, folder: Path, name: str, element: str, height: int | None = None) -> None:
    """Write what the page looks like, light and dark, as small files."""
    from PIL import Image

    for theme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        taken = Image.open(io.BytesIO(browser.screenshot(element, height))).convert("RGB")
        taken.quantize(MOST_COLOURS, dither=Image.Dither.NONE).save(folder / f"{name}-{theme}.png", optimize=True)
        assert taken.width > 500 and len(taken.getcolors(taken.width * taken.height) or ()) > 20  # no empty page


def test_a_run_of_four_workers_is_watched_and_stopped_in_a_browser(
    cluster: Cluster, browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    given = ("--epochs", EPOCHS, "--run", "digits", "--checkpoint-dir", str(folder))
    master = cluster.start(
        "master", *RUN, *cluster.master_flags, *given, "--format", "json", patch=NAMED.format("alpha")
    )
    workers = [cluster.worker(patch=NAMED.format(name)) for name in ("beta", "gamma", "delta", "epsilon")]
    cluster.wait_for_round(20)
    shown, url = dashboard_of(cluster)
    browser.resize(1000, 900)
    browser.open(url)
    shows(browser, f"{SCORE} && {WORKERS}.length === 4")
    assert "Run digits" in text_of(browser, "run-name") and text_of(browser, "state").startswith("running")

    before = browser.value(SCORE)
    shows(browser, f"{SCORE} !== {before!r}")
    shows(browser, "document.querySelector('#chart-validation-accuracy path.curve')")
    shows(browser, f"{WORKERS}.every((row) => /working|idle/.test(row.children[2].textContent))")
    shows(browser, "document.querySelectorAll('#network-drawing rect').length === 4")
    browser.value("document.querySelector('#model summary').click()")
    shows(browser, "document.querySelector('#chart-ratio path.curve') && document.querySelector('#filters canvas')")
    ratios = browser.value("document.querySelector('#chart-ratio path.curve').getAttribute('d')")
    shows(browser, f"document.querySelector('#chart-ratio path.curve')?.getAttribute('d') !== {ratios!r}")
    browser.value("document.getElementById('evaluate').click()")
    shows(browser, "document.querySelectorAll('#confusion td').length === 100")

    workers[2].process.send_signal(signal.SIGKILL)
    shows(browser, f"{WORKERS}.some((row) => row.children[2].textContent.startsWith('gone ('))")
    shows(browser, "document.getElementById('state').innerText.startsWith('degraded')")  # for a minute
    (row,) = browser.value(f"{WORKERS}.map((row) => row.innerText).filter((text) => text.includes('gone ('))")
    assert f"delta, pid {workers[2].pid}" in row and "gone ()" not in row, row
    shows(browser, "document.getElementById('events').innerText.includes('worker gone')")
    round_then = browser.value("shown.view.run.round")
    shows(browser, f"shown.view.run.round > {round_then}")  # it goes on without him

    kept = Path(os.environ.get("SCREENSHOTS_TO", tmp_path))
    below = browser.value("document.getElementById('network-section').getBoundingClientRect().top + scrollY")
    keep_screenshots(browser, kept, "dashboard", "body", int(below))
    keep_screenshots(browser, kept, "dashboard-model", "#model-section")
    keep_screenshots(browser, kept, "dashboard-evaluation", "#evaluation-section")

    browser.value("document.getElementById('stop').focus()")
    browser.press("Enter", 13, "\r")
    shows(browser, "document.getElementById('ask').open")
    assert "Stop run digits?" in text_of(browser, "ask")
    browser.press("Escape", 27)
    shows(browser, "!document.getElementById('ask').open && document.activeElement.id === 'stop'")
    assert master.process.poll() is None
    browser.press("Enter", 13, "\r")
    shows(browser, "document.activeElement.textContent === 'Cancel'")
    browser.press("Tab", 9)
    browser.press("Enter", 13, "\r")
    shows(browser, "document.getElementById('result').innerText.includes('stopped in round')", 60)
    shows(browser, "document.getElementById('state').innerText === 'stopped'", 60)
    assert master.wait() == 1 and [workers[index].wait() for index in (0, 1, 3)] == [0, 0, 0]

    asked = browser.requests()
    assert len(asked) > 10 and all(address.startswith(url.partition("#")[0]) for address in asked), asked
    assert browser.complaints() == []
    shown.process.send_signal(signal.SIGINT)
    assert shown.wait() == 130
    assert cluster.left_over() == []
