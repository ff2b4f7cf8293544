"""`headrace serve` in its own process."""

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

TIMEOUT_SECONDS = 60.0
COMMAND = [sys.executable, "-c", "from headrace.cli import main; main()", "serve"]


@contextmanager
def start_service(*words: str, backend: str = "local") -> Iterator[subprocess.Popen[str]]:
    """Start the command; yield its process, and kill it at the end if it still runs."""
    command = [*COMMAND, "--backend", backend, *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "300"})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def run_service(*words: str, backend: str = "local") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the command; yield its address and process, and kill the process at the end if it still runs."""
    with start_service(*words, backend=backend) as process:
        assert process.stderr is not None
        output = ""
        for line in process.stderr:
            output += line
            if address := re.search(r"headrace serves (https?://\S+?),", line):
                wait_until(partial(is_healthy, address[1].replace("0.0.0.0", "127.0.0.1")))
                yield address[1], process
                return
        pytest.fail(f"the service ended with {process.wait()}: {output}")


def kill_process(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Kill a process with SIGKILL; return its child processes, which may still run for a moment."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    return children


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/health", timeout=5, verify=not url.startswith("https")).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
