"""A real browser for tests of pages: Debian's Chromium without a window, spoken to over its DevTools protocol.

The protocol goes through a pair of pipes, so that nothing listens anywhere. The browser's packages are unpacked into a
folder if they are not installed.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_commands import until
from tests.support.debian_packages import missing_for, unpack

__all__ = ["Browser", "browser", "chromium", "chromium_program", "open_browser", "shows", "text_of"]

_ON_PIPES = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_SECONDS = 60.0


def chromium(folder: Path) -> Path:
    """The program; ``folder`` is where its packages are unpacked if need be."""
    missing = missing_for("chromium", folder)
    names = sorted({"chromium", "chromium-common", *missing}) if missing else []
    root = unpack(names, folder) if names else Path("/")
    return root / "usr/lib/chromium/chromium"


class Browser:
    """One page in a browser. Every call has a deadline."""

    def __init__(self, program: Path, folder: Path) -> None:
        theirs_in, to_browser = os.pipe()
        from_browser, theirs_out = os.pipe()
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        for fd in (theirs_in, theirs_out):
            os.close(fd)
        env = {**os.environ, "HOME": str(folder)}
        root = program.parents[3]
        if len(root.parts) > 1:  # unpacked, not installed; some libraries name folders of the whole machine for others
            libraries = sorted({str(each.parent) for each in root.glob("**/*.so*")})
            env["LD_LIBRARY_PATH"] = ":".join(libraries)
        flags = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(
                "--hide-scrollbars",
                "--force-color-profile=srgb",
                f"--user-data-dir={folder / 'profile'}",
                "about:blank",
            ),
        ]
        command = [sys.executable, "-c", _ON_PIPES, *map(str, given), str(program), *flags]
        self._process = subprocess.Popen(
            command,
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        for fd in given:
            os.close(fd)
        self._to, self._from = to_browser, from_browser
        self._numbers, self._rest = itertools.count(1), b""
        self.events: list[dict[str, Any]] = []
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while True:
            found = self._next(end, method)
            if found.get("id") == number:
                assert "error" not in found, f"{method}: {found['error']}"
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self, end: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = end - time.monotonic()
            assert left > 0 and select.select([self._from], [], [], left)[0], f"the browser did not answer: {what}"
            got = os.read(self._from, 1 << 20)
            assert got, f"the browser has ended: {what}"
            self._rest += got
        whole, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(whole)
        return found

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded; it may take what stands behind # out of its address."""
        self.call("Page.navigate", url=url)
        end, place = time.monotonic() + _SECONDS, json.dumps(url.partition("#")[0])
        while not self.value(f"document.readyState === 'complete' && location.href.startsWith({place})"):
            assert time.monotonic() < end, f"{url} is not loaded"

    def value(self, script: str) -> Any:
        """What a piece of JavaScript comes to in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, f"{script}: {done['exceptionDetails']}"
        return done["result"].get("value")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key."""
        common = {"key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def screenshot(self, element: str = "", height: int | None = None) -> bytes:
        """The page as PNG, or what a selector finds of it; of that so many pixels from its top."""
        if not element:
            return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
        box = self.value(
            f"(({{x, y, width, height}}) => ({{x: x + scrollX, y: y + scrollY, width, height}}))"
            f"(document.querySelector({json.dumps(element)}).getBoundingClientRect())"
        )
        clip = {**box, "height": height or box["height"], "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def requests(self) -> list[str]:
        """The addresses that the page has asked for."""
        sent = [each["params"] for each in self.events if each.get("method") == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]

    def complaints(self) -> list[str]:
        """Errors that the browser reports: exceptions, and requests that a policy refused."""
        self.call("Runtime.evaluate", expression="0")  # what has come by now
        found = [each for each in self.events if each.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        return [json.dumps(each["params"]) for each in found]

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError, AssertionError):
            self._session = ""
            self.call("Browser.close")
        for fd in (self._to, self._from):
            os.close(fd)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)


@contextlib.contextmanager
def open_browser(program: Path, folder: Path) -> Iterator[Browser]:
    """A browser, which is ended at the end; ``folder`` is for what it writes."""
    browser = Browser(program, folder)
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="session")
def chromium_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    return chromium(tmp_path_factory.mktemp("chromium"))


@pytest.fixture
def browser(chromium_program: Path, tmp_path: Path) -> Iterator[Browser]:
    """A browser of the test's own."""
    with open_browser(chromium_program, tmp_path / "browser") as opened:
        yield opened


def text_of(browser: Browser, id: str) -> str:
    """What an element shows."""
    return str(browser.value(f"document.getElementById('{id}').innerText"))


def shows(browser: Browser, script: str, seconds: float = 90.0) -> float:
    """Wait until a piece of JavaScript is true in the page; return how many seconds that took."""
    return until(lambda: browser.value(f"Boolean({script})"), seconds, script)
