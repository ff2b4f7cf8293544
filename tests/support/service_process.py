"""`headrace serve` as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import psutil
import pytest

SLOW = 60.0
COMMAND = [sys.executable, "-c", "from headrace.cli import main; main()", "serve"]


@contextmanager
def serving(*words: str, backend: str = "local") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the command; yields its address and process, which is ended if it is still there."""
    command = [*COMMAND, "--backend", backend, *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "300"})
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"headrace serves (http://\S+?),", line):
                wait(partial(healthy, found[1].replace("0.0.0.0", "127.0.0.1")))
                yield found[1], process
                return
        pytest.fail(f"it ended with {process.wait()}: {said}")
    finally:
        process.kill()
        process.wait()


def killed(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Kill a process with SIGKILL; return what it had started, and that may still run for a moment."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    return children


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + SLOW
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
