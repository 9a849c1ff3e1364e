"""Chromium: opens pages without a window over the DevTools protocol, and reports what is wrong with them.

The browser is driven through a pair of pipes (``--remote-debugging-pipe``), so that nothing has to be installed beside
it. Pages come from a web server on loopback; a request for any other host is a fault.

    with serve(folder) as url, Chromium() as browser:
        page = browser.open(f"{url}/index.html", width=400)
        assert page.faults() == []
"""

from __future__ import annotations

import base64
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser of this machine, or `None`."""

WHY_NOT = "no chromium, chromium-browser or google-chrome on PATH; on Debian: apt-get install chromium"
"""The reason of a skip where there is no browser."""

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
# The protocol speaks on file descriptors 3 and 4, which only the process that becomes the browser may give away.
BECOME = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)

CONTRAST = 4.5
"""The least contrast of text with its background, the level AA of WCAG 2."""

FAULTS_OF_LAYOUT = (Path(__file__).parent / "faults.js").read_text()


class Quiet(SimpleHTTPRequestHandler):
    """A file server that writes no log."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Drops the line."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serves a folder on a free port of loopback, and yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Page:
    """A page that the browser shows, with what happened while it loaded."""

    browser: Chromium
    session: str
    url: str
    width: int
    console: list[str] = field(default_factory=list)
    """Errors and uncaught exceptions."""
    requests: list[str] = field(default_factory=list)
    """The address of every request."""
    failed: list[str] = field(default_factory=list)
    """Requests without an answer, or with one of 400 and above."""

    def evaluate(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, awaited if it is a promise."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.browser.call("Runtime.evaluate", asked, self.session)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{self.url}: {answer['exceptionDetails'].get('exception', answer)}")
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 10) -> Any:
        """Returns the value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.url}: {script} is still {value!r} after {seconds} s")
            time.sleep(0.05)
        return value

    def leaving(self) -> list[str]:
        """Returns the requests that leave this machine."""
        inside = ("127.0.0.1", "localhost", None)  # `data:` and `blob:` name no host
        return [url for url in self.requests if urlsplit(url).hostname not in inside]

    def overflow(self) -> list[str]:
        """Returns the elements that reach beyond the right edge of the window and make the page scroll sideways."""
        return list(self.evaluate(f"({FAULTS_OF_LAYOUT}).overflow()"))

    def low_contrast(self, least: float = CONTRAST) -> list[str]:
        """Returns the visible texts whose contrast with their background is less than `least`."""
        return list(self.evaluate(f"({FAULTS_OF_LAYOUT}).contrast({least})"))

    def faults(self) -> list[str]:
        """Returns a sentence for everything that is wrong with the page."""
        return [
            *(f"console: {text}" for text in self.console),
            *(f"failed request: {url}" for url in self.failed),
            *(f"request that leaves the machine: {url}" for url in self.leaving()),
            *(f"overflow at {self.width} px: {what}" for what in self.overflow()),
            *(f"contrast below {CONTRAST}: {what}" for what in self.low_contrast()),
        ]

    def screenshot(self, path: Path, full: bool = False) -> None:
        """Writes a PNG of the window, or of the whole page."""
        asked = {"format": "png", "captureBeyondViewport": full}
        if full:
            size = self.browser.call("Page.getLayoutMetrics", {}, self.session)["cssContentSize"]
            asked["clip"] = {"x": 0, "y": 0, "width": self.width, "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.browser.call("Page.captureScreenshot", asked, self.session)["data"]))


class Chromium:
    """A browser with a new, empty profile, as a context manager.

    Args:
        seconds: The longest time that an answer or a page may take.
    """

    def __init__(self, seconds: float = 30) -> None:
        if PROGRAM is None:
            raise FileNotFoundError(WHY_NOT)
        self.seconds = seconds
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        ends = [os.dup(theirs_in), os.dup(theirs_out)]
        command = [sys.executable, "-c", BECOME, *map(str, ends), PROGRAM, *OPTIONS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._number = 0
        self._rest = b""
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the browser and removes its profile."""
        try:
            self.call("Browser.close")
            self._process.wait(self.seconds)
        except (OSError, EOFError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, arguments: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Sends a command of the DevTools protocol, and returns its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": arguments or {}}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        end = time.monotonic() + self.seconds
        while True:
            answer = self._receive(end)
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def open(self, url: str, width: int = 1400, height: int = 900, dark: bool = False) -> Page:
        """Opens an address in a new tab, and returns its page once it is loaded and its fonts and images are there.

        Args:
            url: The address.
            width: The width of the window in CSS pixels; below 600 it is a mobile one.
            height: The height of the window.
            dark: Whether the page is asked for its dark colors.
        """
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session, url, width)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable", {}, session)
        window = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", window, session)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme, still]}, session)
        self._loaded.discard(session)
        answer = self.call("Page.navigate", {"url": url}, session)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        end = time.monotonic() + self.seconds
        while session not in self._loaded:
            self._receive(end)
        page.evaluate("document.fonts.ready.then(() => true)")
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
        return page

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{PROGRAM} gave no answer within {self.seconds} s")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise EOFError(f"{PROGRAM} ended by itself")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        if "method" in answer and (page := self._pages.get(answer.get("sessionId", ""))):
            self._note(page, answer["method"], answer["params"])
        return answer

    def _note(self, page: Page, event: str, what: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded.add(page.session)
        elif event == "Network.requestWillBeSent":
            page.requests.append(what["request"]["url"])
        elif event == "Network.responseReceived" and what["response"]["status"] >= 400:
            page.failed.append(f"{what['response']['status']} {what['response']['url']}")
        elif event == "Network.loadingFailed" and not what.get("canceled"):
            page.failed.append(f"{what['errorText']} {what['type']}")
        elif event == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            page.console.append(str(details.get("exception", {}).get("description", details["text"])))
        elif event == "Runtime.consoleAPICalled" and what["type"] in ("error", "assert"):
            page.console.append(" ".join(str(one.get("value", one.get("description"))) for one in what["args"]))
        elif event == "Log.entryAdded" and what["entry"]["level"] == "error":
            page.console.append(f"{what['entry']['text']} {what['entry'].get('url', '')}".strip())
