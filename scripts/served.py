# ruff: noqa: S603, INP001  our own command; a part of the scripts beside it
"""`headrace serve` as a process, to be measured."""

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
STARTING_SECONDS = 120


class Served:
    """Started at once on a free port, with a checkpoint in a folder; what it says goes to a file beside that."""

    def __init__(self, folder: Path, *words: str) -> None:
        """Wait until it says where it is."""
        folder.mkdir(parents=True, exist_ok=True)
        self._said = folder / "said"
        command = [*COMMAND, *words, "--port", "0", "--checkpoint", str(folder / "state")]
        with self._said.open("w") as said:
            self._process = subprocess.Popen(command, stderr=said, env={**os.environ, "COLUMNS": "300"})
        self.pid = self._process.pid
        until = time.monotonic() + STARTING_SECONDS
        while not (match := re.search(r"headrace serves http://([\d.]+):(\d+)", self._said.read_text())):
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.kill()
                raise SystemExit(f"the service did not start: {self._said.read_text()}")
            time.sleep(0.1)
        self.address, self.port = match[1], int(match[2])
        self.http = httpx.Client(base_url=f"http://{self.address}:{self.port}", timeout=60)

    def __enter__(self) -> Self:
        """Wait until it answers."""
        until = time.monotonic() + STARTING_SECONDS
        while time.monotonic() < until:
            try:
                self.http.get("/v1/health").raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return self
        self._process.kill()
        raise SystemExit("the service does not answer")

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            print("the service did not end when it was asked to")
            self._process.kill()
