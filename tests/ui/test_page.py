"""The dashboard's page in a real browser: it shows what happens, obeys a keyboard, and asks nobody else."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import msgspec
import pytest

from dl4jlegacy.scaleout.state.records import WorkerRecord
from dl4jlegacy.ui.run_sources import FolderSource
from tests.support.browser import Browser, shows, text_of
from tests.support.dashboards import HOSTILE, KeptRun, TrackedRun, history, link_to, served, small_conf
from tests.ui.test_model import trained

pytestmark = pytest.mark.long

WIDTHS = (1200, 360)
COUNT_STREAMS = """
    window.streams = 0;
    const asked = window.fetch;
    window.fetch = (path, options) => { window.streams += path === "api/v1/stream"; return asked(path, options); };
"""


def busy_run() -> TrackedRun:
    source = TrackedRun()
    source.set_head(25)
    source.entries = history(25)
    source.set_worker(0, job="25/0", jobs_done=24, device="NVIDIA H100, 3.2 of 80 GiB")
    source.set_worker(1, state="idle", jobs_done=26)
    source.set_job(25, 0, worker="host-0", progress=1)
    source.journal.write("run_began", run="r1")
    return source


def test_the_page_follows_a_run_and_asks_nobody_but_its_server(browser: Browser) -> None:
    source = busy_run()
    with served(source) as (client, panel):
        browser.open(link_to(client, panel))
        curve = "document.querySelector('#chart-score path')?.getAttribute('d')"
        shows(browser, curve)
        before = browser.value(curve)
        assert text_of(browser, "state") == "running: finetune" and "Run r1" in text_of(browser, "run-name")
        assert browser.value("document.querySelectorAll('#charts figure').length") == 4
        assert "3.2 of 80 GiB" in text_of(browser, "workers")
        source.set_head(40)
        source.entries = history(40)
        shows(browser, f"{curve} !== {before!r}")
        shows(browser, "document.getElementById('figures').innerText.includes('40 of 40')")
        linear = browser.value(curve)
        browser.value("document.getElementById('logarithmic').click()")
        assert (
            browser.value(curve) != linear
            and browser.value("document.querySelectorAll('#chart-score path').length") == 1
        )
        source.set_gone(host="killed")
        shows(browser, "document.getElementById('workers').innerText.includes('gone (killed)')")
        source.is_away = True
        shows(browser, "document.getElementById('alerts').innerText.includes('did not answer')")
        assert "not reached now" in text_of(browser, "state")
        source.is_away = False
        shows(browser, "!document.getElementById('alerts').innerText.includes('did not answer')")
        asked = browser.requests()
        assert len(asked) > 5 and all(url.startswith(str(client.base_url)) for url in asked), asked
        assert browser.complaints() == []


def test_a_view_that_comes_before_a_script_is_not_asked_for(browser: Browser) -> None:
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=COUNT_STREAMS)
    with served(busy_run()) as (client, panel):
        browser.call("Fetch.enable", patterns=[{"urlPattern": "*/model.js"}])
        browser.call("Page.navigate", url=link_to(client, panel))
        shows(browser, "typeof show === 'function'")  # the script before it has run
        held = next(each for each in browser.events if each.get("method") == "Fetch.requestPaused")
        assert browser.value("streams") == 0
        browser.call("Fetch.continueRequest", requestId=held["params"]["requestId"])
        shows(browser, "document.getElementById('workers').innerText.includes('3.2 of 80 GiB')")
        assert browser.value("streams") == 1
        assert browser.complaints() == []


def test_the_network_is_drawn_and_its_parameters_are_looked_at_when_they_are_opened(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    trained(folder)
    with served(FolderSource(str(folder))) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "document.querySelectorAll('#network-drawing rect').length === 4")
        assert browser.value("document.querySelectorAll('#network-drawing .arrow').length") == 3
        assert "parameters, " in text_of(browser, "network-note")
        assert not any("/model?" in url or url.endswith("/filters") for url in browser.requests())
        browser.value("document.querySelector('#model summary').click()")
        shows(browser, "document.querySelector('#chart-ratio .curve')")
        assert browser.value("document.querySelectorAll('#model-charts figure').length") == 5
        shows(browser, "document.querySelector('#filters canvas')")
        shades = "document.querySelector('#filters canvas').getContext('2d').getImageData(2, 2, 48, 48).data"
        assert browser.value(f"new Set({shades}).size") > 10
        browser.value(
            "{ const c = document.getElementById('layer'); c.value = '2'; c.dispatchEvent(new Event('change')); }"
        )
        assert "2_W" in text_of(browser, "model-charts") and "0_W" not in text_of(browser, "model-charts")
        assert browser.value("document.querySelectorAll('#parameters tr').length") == 6
        browser.value("document.getElementById('evaluate').click()")
        shows(browser, "document.querySelectorAll('#confusion td').length === 100")
        assert "accuracy" in text_of(browser, "evaluation-figures")
        assert "Baseline, always '" in text_of(browser, "evaluation-findings")
        check_accessibility(browser)
        browser.open(str(client.base_url))  # the server knows what was found
        shows(browser, "document.querySelectorAll('#confusion td').length === 100")
        assert browser.complaints() == []


def test_what_a_run_says_of_itself_is_text(browser: Browser, tmp_path: Path) -> None:
    source = busy_run()
    source.set_head(25, stopped_by=HOSTILE)
    source.set_worker(0, host=HOSTILE, device=HOSTILE)
    source.fail_job(25, 1, HOSTILE)
    with served(source) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "document.querySelector('#events details pre')?.textContent.includes('onerror')")
        shows(browser, "document.getElementById('log').textContent.includes('onerror')")
        for where in ("workers", "jobs", "alerts"):
            assert "<img src=x onerror=alert(1)>" in text_of(browser, where), where
        assert browser.value("document.images.length + document.scripts.length") == 2
        assert browser.complaints() == []


def test_everything_is_reached_by_keyboard_and_stop_asks_first(browser: Browser) -> None:
    source = busy_run()
    source.fail_job(25, 1, "RuntimeError: x")
    with served(source) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "!document.getElementById('stop').hidden && document.querySelector('#events summary')")
        reached = []
        for _ in range(40):
            browser.press("Tab", 9)
            reached.append(
                browser.value(
                    "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
                )
            )
        assert {"skip", "save", "stop", "theme", "logarithmic", "kind", "log", "SUMMARY", "scroll"} <= set(reached), (
            reached
        )
        browser.value("document.getElementById('stop').focus()")
        assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        browser.press("Enter", 13, "\r")
        shows(browser, "document.getElementById('ask').open")
        assert (
            "Stop run r1?" in text_of(browser, "ask")
            and browser.value("document.activeElement.textContent") == "Cancel"
        )
        browser.press("Escape", 27)
        shows(browser, "!document.getElementById('ask').open && document.activeElement.id === 'stop'")
        browser.press("Enter", 13, "\r")
        shows(browser, "document.activeElement.textContent === 'Cancel'")
        browser.press("Enter", 13, "\r")
        shows(browser, "!document.getElementById('ask').open && document.activeElement.id === 'stop'")
        assert source.stops == 0 and browser.value("document.getElementById('result').hidden")
        browser.press("Enter", 13, "\r")
        shows(browser, "document.activeElement.textContent === 'Cancel'")
        browser.press("Tab", 9)
        shows(browser, "document.activeElement.id === 'ask-yes'")
        browser.press("Enter", 13, "\r")
        shows(browser, "document.getElementById('result').innerText.length > 5")
        assert text_of(browser, "result") == "run r1: stopped"
        shows(
            browser,
            "document.getElementById('state').innerText === 'stopped' && document.getElementById('stop').hidden",
        )
        assert source.stops == 1


def test_a_worker_is_drained_by_keyboard_while_its_row_changes(browser: Browser) -> None:
    source = busy_run()
    with served(source) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "document.querySelectorAll('#workers button').length === 2")
        browser.value("document.querySelectorAll('#workers button')[1].focus()")
        source.set_worker(1, state="working", job="25/1", jobs_done=27)
        shows(browser, "document.getElementById('workers').innerText.includes('25/1')")
        assert browser.value("document.activeElement.dataset.worker") == "host-1"
        browser.press("Enter", 13, "\r")
        shows(browser, "document.activeElement.textContent === 'Cancel'")
        assert "Drain worker host-1?" in text_of(browser, "ask") and source.drained == []
        browser.press("Tab", 9)
        browser.press("Enter", 13, "\r")
        shows(browser, "document.getElementById('result').innerText === 'host-1 was asked to leave'")
        assert source.drained == ["host-1"]
        source.set_gone(host="closed")
        shows(browser, "document.querySelectorAll('#workers button').length === 0")


def test_a_refusal_is_shown_in_the_words_of_the_command_line(browser: Browser, tmp_path: Path) -> None:
    kept = KeptRun(tmp_path / "run", dataset="iris")
    kept.write(history(12))
    with served(FolderSource(str(kept.path)), folder=str(tmp_path)) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "!document.getElementById('save').hidden")
        browser.value("document.getElementById('save').click(), document.getElementById('ask-yes').click()")
        shows(browser, "document.getElementById('result').innerText.length > 5")
        said = text_of(browser, "result")
        assert "has kept no checkpoint yet" in said and said.endswith("[DL4J-CHECKPOINT]"), said


def check_accessibility(browser: Browser, where: str = "") -> None:
    """Assert that axe finds nothing wrong on the page, or in an element of it."""
    found = importlib.util.find_spec("axe_core_python")
    assert found is not None and found.submodule_search_locations, "./install dev brings axe-core-python"
    axe = (Path(found.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")
    browser.value(axe + ";0")
    violations = browser.value(
        f"axe.run({where}).then((found) => found.violations.map((v) => [v.id, v.impact, v.nodes.map((n) => n.html)]))"
    )
    assert violations == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_an_accessibility_check_finds_nothing_serious(browser: Browser, width: int, theme: str) -> None:
    source = busy_run()
    source.fail_job(25, 1, "RuntimeError: x")
    source.set_gone(host="killed")
    with served(source) as (client, panel):
        browser.resize(width, 800)
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        browser.open(link_to(client, panel))
        shows(
            browser,
            "document.querySelectorAll('#charts figure').length === 4 && document.querySelector('#events summary')",
        )
        assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"
        browser.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        shows(browser, "document.querySelectorAll('#charts table').length === 4")
        check_accessibility(browser)
        browser.value("document.getElementById('stop').click()")
        check_accessibility(browser, "'#ask'")


def test_the_server_that_ends_is_missed_and_found_again(browser: Browser) -> None:
    source = busy_run()
    with served(source) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "document.querySelectorAll('#charts figure').length === 4")
    shows(browser, "document.getElementById('state').innerText.includes('does not answer')")
    assert "Run r1" in text_of(browser, "run-name")


ALL_WIDTHS = (360, 800, 1280, 1920)


def pretrained_run() -> TrackedRun:
    """A run whose names are long, as those of real machines are, with a phase of pretraining behind it."""
    source = busy_run()
    source.conf = small_conf(run="digits-with-a-long-name", min_workers=1)
    scores = [(f"pretrain {layer}", 80.0 / (1 + index)) for layer in range(2) for index in range(10)]
    phases = [*scores, *(("finetune", 0.5 / (1 + index)) for index in range(30))]
    source.entries = [
        msgspec.structs.replace(entry, phase=phase, score=score)
        for entry, (phase, score) in zip(history(50), phases, strict=True)
    ]
    source.set_head(25, examples=1250)
    host = "ip-10-0-13-207.eu-central-1.compute.internal"
    for index in range(4):
        worker = f"{host}-{31000 + index}-0123abc{index}-0"
        known = {"id": worker, "host": host, "pid": 31000 + index, "beat": 1000.0, "state": "working", "job": "25/1"}
        device = "NVIDIA H100 80GB HBM3, 3.2 of 80 GiB"
        source.tracker.add_worker(WorkerRecord(**known, jobs_done=1234, device=device))
    source.set_gone(**{f"{host}-31001-0123abc1": "closed"})
    return source


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_its_box_at_any_width(browser: Browser, theme: str, tmp_path: Path) -> None:
    kept = Path(os.environ.get("SCREENSHOTS_TO", tmp_path))
    with served(pretrained_run()) as (client, panel):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        for width in ALL_WIDTHS:
            browser.resize(width, 900)
            browser.open(link_to(client, panel))
            shows(browser, "document.querySelectorAll('#workers button').length >= 4")
            shows(browser, "document.querySelector('#chart-score path')")
            box = "document.querySelector('#workers').closest('.scroll')"
            assert browser.value(f"{box}.scrollWidth <= {box}.clientWidth"), f"the workers at {width} px"
            right = (
                f"Math.max(...[...{box}.querySelectorAll('button')].map((each) => each.getBoundingClientRect().right))"
            )
            assert browser.value(f"{right} <= {box}.getBoundingClientRect().right"), f"the buttons at {width} px"
            assert browser.value("document.documentElement.scrollWidth <= innerWidth"), f"the page at {width} px"
            (kept / f"page-{theme}-{width}.png").write_bytes(browser.screenshot("body"))
        assert browser.value("document.querySelector('dd.line').getClientRects().length") == 1


def test_pretraining_has_a_chart_of_its_own_by_logarithms_with_its_phases_marked(browser: Browser) -> None:
    with served(pretrained_run()) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "document.querySelector('#chart-pretrain-score path')")
        texts = "[...document.querySelectorAll('#chart-pretrain-score text.name')].map((each) => each.textContent)"
        assert browser.value(texts) == ["version of the model", "score, logarithmic", "pretrain 1"]
        assert browser.value("document.querySelector('#chart-score').innerText").startswith("Training score")
        left = text_of(browser, "figures")
        assert "time left" in left and "\u2013" not in left.partition("time left")[2].split("\n")[1]


def test_a_backup_job_of_a_slow_worker_is_no_fault(browser: Browser) -> None:
    source = busy_run()
    source.journal.write("backup_issued", worker="host-0", round=1, slot=0, reason="slow")
    with served(source) as (client, panel):
        browser.open(link_to(client, panel))
        shows(browser, "document.getElementById('events').innerText.includes('backup issued')")
        assert browser.value("document.querySelectorAll('#events .fault').length") == 0
        browser.value("document.getElementById('kind').value = 'faults'")
        browser.value("document.getElementById('kind').dispatchEvent(new Event('change'))")
        assert "backup issued" in text_of(browser, "events")
