# ruff: noqa: S603, INP001  our own command; a module of the scripts in this folder
"""`headrace serve` in its own process, for measurements."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx

COMMAND = [sys.executable, "-c", "from headrace.cli import main; main()", "serve"]
START_TIMEOUT_SECONDS = 120


class ServiceProcess:
    """A service on a free port, with its checkpoint and its log in a folder; the constructor starts it."""

    def __init__(self, folder: Path, *words: str) -> None:
        """Start the service and wait until it logs its address."""
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        command = [*COMMAND, *words, "--port", "0", "--checkpoint", str(folder / "state")]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stderr=log, env={**os.environ, "COLUMNS": "300"})
        self.pid = self._process.pid
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not (match := re.search(r"headrace serves http://([\d.]+):(\d+)", self._log.read_text())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit(f"the service did not start: {self._log.read_text()}")
            time.sleep(0.1)
        self.address, self.port = match[1], int(match[2])
        self.http = httpx.Client(base_url=f"http://{self.address}:{self.port}", timeout=60)

    def __enter__(self) -> Self:
        """Wait until the service responds."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                self.http.get("/v1/health").raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return self
        self._process.kill()
        raise SystemExit("the service does not respond")

    def __exit__(self, *_: object) -> None:
        """Stop the service; kill it if it does not stop within a minute."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            print("the service did not stop on SIGTERM")
            self._process.kill()
