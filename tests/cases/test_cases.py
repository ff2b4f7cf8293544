"""Plays the stories beside this file (`*.case`), on the shared engine and on the oracle: both must tell them as written.

A line is a command; lines indented below it belong to it. Times are on 2024-01-01, UTC; NULL is NULL, '' is no text.

    stream NAME(COLUMN TYPE, …) watermark DURATION      the event-time column is called `time`
    add NAME: SQL                                       may go on in the lines below
    rows STREAM                                         one row a line, values between |
    tick | drain                                        one micro-batch | the end of the input
    expect NAME                                         all rows it has emitted so far, in any order; no line: no row
    late NAME STREAM NUMBER                             how many rows came too late for it
    status NAME accepted|live|removed|failed
    remove NAME
    refuse [NAME]: SQL -> TEXT                          not added; the message has the text (… stands for anything)
    refuse remove NAME -> TEXT, refuse stream … -> TEXT
    explain has: TEXT | explain lacks: TEXT
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from support.compare import same_rows

DAY = datetime(2024, 1, 1, tzinfo=UTC)
STORIES = sorted(Path(__file__).parent.glob("*.case"))


@dataclass(frozen=True)
class Command:
    """One command of a story, with the line it begins at."""

    number: int
    verb: str
    rest: str
    below: list[str] = field(default_factory=list)


def parse(text: str) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0].isspace():
            found[-1].below.append(line.strip())
        else:
            verb, rest = re.fullmatch(r"(\w+):?\s*(.*)", line).groups()
            found.append(Command(number, verb, rest.rstrip()))
    return found


def value(text: str, kind: pa.DataType) -> Any:
    text = text.strip()
    if text == "NULL":
        return None
    if pa.types.is_timestamp(kind):
        hours, minutes, seconds = text.split(":")
        return DAY + timedelta(hours=int(hours), minutes=int(minutes), microseconds=round(float(seconds) * 1e6))
    for fits, read in _READERS:
        if fits(kind):
            return read(text)
    return text[1:-1] if text[:1] == text[-1:] == "'" else text


_READERS = (
    (pa.types.is_boolean, lambda text: {"true": True, "false": False}[text]),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_date, date.fromisoformat),
)


class Player:
    """Carries out commands on a session."""

    def __init__(self, backend: str) -> None:
        self.session = hr.Session(backend=backend)
        self.sources: dict[str, hr.MemorySource] = {}

    def play(self, command: Command) -> None:
        if command.verb not in _VERBS:
            raise ValueError(f"unknown command '{command.verb}'")
        getattr(self, command.verb)(*_VERBS[command.verb].fullmatch(command.rest).groups(), *_rows(command))

    def stream(self, name: str, columns: str, watermark: str) -> None:
        source = hr.MemorySource(columns)
        self.session.create_stream(name, source, time="time", watermark=watermark or "0 seconds")
        self.sources[name] = source

    def add(self, name: str, sql: str, more: list[str]) -> None:
        self.session.add(" ".join([sql, *more]), name=name)

    def rows(self, stream: str, lines: list[str]) -> None:
        self.sources[stream].append(_table(lines, self.sources[stream].schema.to_arrow()))

    def tick(self) -> None:
        self.session.advance()

    def drain(self) -> None:
        self.session.drain()

    def expect(self, name: str, lines: list[str]) -> None:
        found = self._query(name).results()
        same_rows(found.to_pylist(), _table(lines, found.schema))

    def late(self, name: str, stream: str, number: str) -> None:
        assert self._query(name).late.get(stream, 0) == int(number)

    def status(self, name: str, status: str) -> None:
        assert self._query(name).status == status

    def remove(self, name: str) -> None:
        self.session.remove(name)

    def refuse(self, what: str, message: str) -> None:
        verb, rest = re.fullmatch(r"(stream|remove|[^:]*:)\s*(.*)", what if ":" in what.split("(")[0] or what[0] in "sr" else f": {what}").groups()
        with refused(message):
            if verb in {"stream", "remove"}:
                self.play(Command(0, verb, rest))
            else:
                self.session.add(rest, name=verb[:-1].strip() or None)

    def explain(self, wanted: str, text: str) -> None:
        found = self.session.explain()
        assert (text in found) == (wanted == "has"), found

    def _query(self, name: str) -> hr.Query:
        found = self.session.find(name)
        assert found is not None, f"query '{name}' was never added"
        return found


_VERBS = {
    "stream": re.compile(r"`?([^(`]+?)`?\((.*)\)(?: watermark (.*))?"),
    "add": re.compile(r"([^:]+):\s*(.*)"),
    "rows": re.compile(r"(.+)"),
    "tick": re.compile(""),
    "drain": re.compile(""),
    "expect": re.compile(r"(.+)"),
    "late": re.compile(r"(\S+) (.+) (\d+)"),
    "status": re.compile(r"(\S+) (\w+)"),
    "remove": re.compile(r"(.+)"),
    "refuse": re.compile(r"(.*\S)\s*->\s*(.*)"),
    "explain": re.compile(r"(has|lacks): (.*)"),
}
