"""A service in a process of its own, and a page of it that is watched while it is used."""

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

ARTEFACTS = Path(__file__).parents[1] / "browser" / "artefacts"
PATIENCE_MS = 15_000


class Service:
    """`headrace serve` on a port and a checkpoint that stay the same when it is started again."""

    def __init__(self, checkpoint: Path, *options: str) -> None:
        self.port, self.checkpoint, self.options = _free_port(), checkpoint, options
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["serve", "--backend", "local", "--port", str(self.port), "--checkpoint", str(self.checkpoint), *self.options]
        self._process = subprocess.Popen([sys.executable, "-c", "from headrace.cli import main; main()", *words])
        until = time.monotonic() + 40
        while not self._answers():
            if self._process.poll() is not None:
                pytest.fail(f"the service ended by itself, with {self._process.returncode}")
            if time.monotonic() > until:
                pytest.fail("the service does not answer after 40 s")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _answers(self) -> bool:
        try:
            return bool(self.ask("GET", "/v1/health"))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Watched:
    """What a page must not do: raise, be refused something by its own policy, or ask anybody else."""

    def __init__(self, page: Page, origin: str) -> None:
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"raised: {error}"))
        page.on("console", self._said)
        page.on("request", lambda one: None if one.url.startswith(origin) else self.wrong.append(f"asked: {one.url}"))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:  # an answer of 422, or none, is not wrong
            self.wrong.append(f"said: {message.text}")


def watched(browser: Browser, service: Service, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that nobody has seen before."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=service.url)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    found = Watched(page, service.url)
    yield page
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{request.node.name}.png")
    context.close()
    assert found.wrong == []
