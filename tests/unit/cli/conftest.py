"""Fixtures: the command line as a function, and a session file. Makes `support` importable from any directory."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from headrace.cli import main
from headrace.cli.shell import embedded


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the micro-batches of a shell in this process 20 ms apart."""
    monkeypatch.setattr(embedded, "_INTERVAL_SECONDS", 0.02)


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture
def headrace(capfd):
    def call(*words: object) -> CommandResult:
        capfd.readouterr()
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return call


@pytest.fixture
def session_file(tmp_path):
    """Return a function that writes a session file over two small CSV files, with optional parts."""

    def write(text: str | None = None, *, head: str = "", queries: str | None = None, stream: str = "") -> Path:
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / "a.csv").write_text(
            "k,v,time\n1,10,2026-01-01T00:00:01Z\n2,20,2026-01-01T00:00:02Z\n1,,2026-01-01T00:00:03Z\n"
        )
        (tmp_path / "data" / "b.csv").write_text("k,v,time\n1,5,2026-01-01T00:00:11Z\n2,7,\n3,9,2026-01-01T00:00:12Z\n")
        default_query = "[queries.total]\nsql = \"SELECT window_start, k, SUM(v) AS s FROM TUMBLE(t, '10 seconds') GROUP BY k\"\n"
        path = tmp_path / "session.toml"
        path.write_text(
            text
            if text is not None
            else f'{head}\n[streams.t]\npath = "data/*.csv"\nschema = "k INT, v BIGINT, time TIMESTAMP"\n'
            f'time = "time"\n{stream}\n' + (default_query if queries is None else queries)
        )
        return path

    return write
