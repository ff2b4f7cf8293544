"""The tutorial as a reader works through it: every block runs, in order, and prints what the page says.

A block of `python` or `toml` below "Save this as `NAME`:" becomes that file; any other Python block runs. A shell block that
starts with `headrace serve` keeps running, as in a second terminal, until the next one starts; every command starts in a new
interpreter except the second service, which starts in a preloaded one. A block without a language is the
expected output of the block above it, where `…` stands for any text, or for any lines. A free port replaces that of the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from project import ROOT

from support.preloaded_process import PreloadedPopen

TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED_AS = re.compile(r"[Ss]ave this as `([\w.-]+)`:$")
ANY_LINES = r"(?:.*\n)*?.*"
PORT = "8420"
COMMAND_SECONDS = 90
INSTALLATION = "pip install"
OTHER_SETTINGS = {"HEADRACE_TOKEN", "PYTHONDONTWRITEBYTECODE"}  # without byte code every command takes two seconds longer


class Block(NamedTuple):
    """A fenced block: its language, its text, the name of the file that it is saved as, and the line of its first line."""

    language: str
    text: str
    saved_as: str
    line: int


def read_blocks(text: str) -> list[Block]:
    blocks = []
    for match in BLOCK.finditer(text):
        saved = SAVED_AS.search(text[: match.start()].rstrip())
        blocks.append(Block(match[1], match[2], saved[1] if saved else "", text.count("\n", 0, match.start()) + 2))
    return blocks


class Reader:
    """Works through the page in a folder, with a service in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, choose_port()
        self.namespace: dict[str, object] = {"__name__": "tutorial"}
        self.output: str | None = None
        self.service: subprocess.Popen[str] | None = None
        self.has_served = False
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in OTHER_SETTINGS},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "300",
            "NO_COLOR": "1",
        }

    def work_through(self, block: Block) -> None:
        text = block.text.replace(PORT, str(self.port))
        if block.saved_as:
            (self.folder / block.saved_as).write_text(text, encoding="utf-8")
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile("\n" * (block.line - 1) + text, TUTORIAL, "exec"), self.namespace)
            self.output = printed.getvalue()
        elif block.language == "sh" and text.startswith("headrace serve"):
            self.serve(text)
        elif block.language == "sh":
            self.output = self.run(text)
        else:
            assert block.language == "", f"a block of '{block.language}' needs the name of a file in the line above it"
            assert self.output is not None
            assert_matches(block.text, self.output)

    def run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, script: str) -> None:
        self.stop_service()
        with (self.folder / "service.log").open("w") as log:
            options = {"cwd": self.folder, "env": self.environment, "stdout": log, "stderr": log, "text": True}
            if self.has_served:
                command = [sys.executable, "-c", "from headrace.cli import main; main()", *shlex.split(script)[1:]]
                self.service = PreloadedPopen(command, **options)
            else:
                self.service = subprocess.Popen(["bash", "-c", f"exec {script}"], **options)
        self.has_served = True
        deadline = time.monotonic() + COMMAND_SECONDS
        while not self.is_healthy():
            assert self.service.poll() is None, (self.folder / "service.log").read_text()
            assert time.monotonic() < deadline, "the service does not answer"
            time.sleep(0.01)

    def is_healthy(self) -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/health", timeout=5).status == 200
        except urllib.error.URLError:
            return False

    def stop_service(self) -> None:
        """Press Ctrl-C."""
        if self.service is not None:
            self.service.send_signal(signal.SIGINT)
            assert self.service.wait(COMMAND_SECONDS) == 0, (self.folder / "service.log").read_text()
            self.service = None


def choose_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def assert_matches(expected: str, output: str) -> None:
    """Compare line by line without trailing blanks; a line `…` stands for any lines, and `…` inside a line for any text."""
    lines = [line.rstrip() for line in output.strip().splitlines()]
    pattern = r"\n".join(ANY_LINES if line == "…" else match_line(line) for line in expected.strip().split("\n"))
    assert re.fullmatch(pattern, "\n".join(lines)), f"expected\n{expected}\ngot\n{output}"


def match_line(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split("…")))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    assert shutil.which("curl"), "the tutorial uses curl: apt-get install curl"
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    yield reader
    if reader.service is not None:
        reader.service.kill()
        reader.service.wait()


def test_the_tutorial_runs_as_it_is_written(reader: Reader):
    blocks = read_blocks(TUTORIAL.read_text(encoding="utf-8"))
    skipped = [block for block in blocks if INSTALLATION in block.text]
    assert [block.language for block in skipped] == ["sh"]  # the tests run in the environment that it makes
    for block in blocks:
        if block not in skipped:
            reader.work_through(block)
    reader.stop_service()


@pytest.mark.parametrize(
    ("expected", "output", "matches"),
    [
        ("a\nb", "a  \nb\n", True),
        ("a\nb", "a\nx\nb\n", False),
        ("a\n…\nb", "a\nx\ny\nb\n", True),
        ("a …, c", "a b, c\n", True),
        ("a …, c", "a b\n, c\n", False),
    ],
)
def test_an_ellipsis_stands_for_any_text_or_lines(expected: str, output: str, matches: bool):
    if matches:
        assert_matches(expected, output)
    else:
        with pytest.raises(AssertionError):
            assert_matches(expected, output)
