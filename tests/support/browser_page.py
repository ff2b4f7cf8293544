"""A service in its own process, and its page in a browser, checked for errors while a test uses it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

SCREENSHOTS = Path(__file__).parents[1] / "browser" / "artefacts"
TIMEOUT_MS = 15_000


class ServiceProcess:
    """`headrace serve`, on a port and a checkpoint that stay the same over restarts."""

    def __init__(self, checkpoint: Path, *options: str) -> None:
        self.port, self.checkpoint, self.options = _free_port(), checkpoint, options
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["serve", "--backend", "local", "--port", str(self.port), "--checkpoint", str(self.checkpoint), *self.options]
        self._process = subprocess.Popen([sys.executable, "-c", "from headrace.cli import main; main()", *words])
        deadline = time.monotonic() + 40
        while not self._is_healthy():
            if self._process.poll() is not None:
                pytest.fail(f"the service ended with {self._process.returncode}")
            if time.monotonic() > deadline:
                pytest.fail("the service does not respond after 40 s")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _is_healthy(self) -> bool:
        try:
            return bool(self.request("GET", "/v1/health"))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


class PageErrors:
    """Records what a page must not do: raise, violate its content security policy, or send requests to another origin."""

    def __init__(self, page: Page, origin: str) -> None:
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))
        page.on("console", self._record_message)
        page.on(
            "request", lambda sent: None if sent.url.startswith(origin) else self.errors.append(f"foreign request: {sent.url}")
        )

    def _record_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:  # 422 and lost connections are expected
            self.errors.append(f"console: {message.text}")


def open_page(browser: Browser, service: ServiceProcess, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Yield a page in a new browser context; then take a screenshot and assert that the page had no errors."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=service.url)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    recorded = PageErrors(page, service.url)
    yield page
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{request.node.name}.png")
    context.close()
    assert recorded.errors == []
