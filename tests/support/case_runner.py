"""Runs cases, texts that a user can read (`tests/cases/*.case`), on a session of any back-end.

A line is a command; lines indented below it belong to it. Times are on 2024-01-01, UTC; NULL is NULL, '' is no text.

    stream NAME(COLUMN TYPE, …) watermark DURATION      the event-time column is called `time`
    add NAME: SQL                                       may continue in the lines below
    rows STREAM                                         one row a line, values between |
    tick, drain                                         one micro-batch, the end of the input
    expect NAME                                         all rows emitted so far, in any order; no line: no row
    late NAME STREAM NUMBER                             number of late rows of the query
    status NAME STATUS                                  accepted, live, removed or failed
    remove NAME
    refuse COMMAND -> TEXT                              text of the error (… stands for any text)
    explain has TEXT, explain lacks TEXT
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from support.compare import assert_same_rows

DAY = datetime(2024, 1, 1, tzinfo=UTC)
CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.case"))


@dataclass(frozen=True)
class Command:
    """A command of a case."""

    verb: str
    rest: str
    below: list[str] = field(default_factory=list)


def parse(text: str) -> list[Command]:
    commands: list[Command] = []
    for line in text.splitlines():
        if line[:1].isspace() and line.strip():
            commands[-1].below.append(line.strip())
        elif line.strip() and not line.startswith("#"):
            verb, _, rest = line.strip().partition(" ")
            commands.append(Command(verb, rest.strip()))
    return commands


class CaseRunner:
    """Runs commands on a session; the method of a verb gets the indented lines and the groups of its pattern."""

    patterns = {  # noqa: RUF012
        "stream": r"`?([^(`]+)`?\((.*)\)(?: watermark (.*))?",
        "add": r"([^:]+):\s*(.*)",
        "rows": r"(.+)",
        "tick": "",
        "drain": "",
        "expect": r"(.+)",
        "late": r"(\S+) (.+) (\d+)",
        "status": r"(\S+) (\w+)",
        "remove": r"(.+)",
        "refuse": r"(.*\S)\s*->\s*(.*)",
        "explain": r"(has|lacks) (.*)",
    }

    def __init__(self, session: hr.Session) -> None:
        self.session = session
        self.sources: dict[str, hr.MemorySource] = {}

    def run(self, command: Command) -> None:
        match = re.fullmatch(self.patterns[command.verb], command.rest)
        assert match, f"'{command.verb} {command.rest}' is not a valid command"
        getattr(self, command.verb)(command.below, *match.groups())

    def stream(self, _: list[str], name: str, columns: str, watermark: str | None) -> None:
        source = hr.MemorySource(columns)
        self.session.create_stream(name, source, time="time", watermark=watermark or "0 seconds")
        self.sources[name] = source

    def add(self, below: list[str], name: str, sql: str) -> None:
        self.session.add(" ".join([sql, *below]).strip(), name=name)

    def rows(self, below: list[str], stream: str) -> None:
        self.sources[stream].append(table(below, self.sources[stream].schema.to_arrow()))

    def tick(self, _: list[str]) -> None:
        self.session.advance()

    def drain(self, _: list[str]) -> None:
        self.session.drain()

    def expect(self, below: list[str], name: str) -> None:
        found = self.query(name).results()
        assert_same_rows(found.to_pylist(), table(below, found.schema))

    def late(self, _: list[str], name: str, stream: str, number: str) -> None:
        assert self.query(name).late.get(stream, 0) == int(number)

    def status(self, _: list[str], name: str, status: str) -> None:
        assert self.query(name).status == status, self.query(name).error

    def remove(self, _: list[str], name: str) -> None:
        self.session.remove(name)

    def refuse(self, below: list[str], text: str, message: str) -> None:
        with pytest.raises(hr.HeadraceError, match="(?s)" + ".*".join(map(re.escape, message.split(" … ")))):
            self.run(parse("\n  ".join([text, *below]))[0])

    def explain(self, _: list[str], how: str, text: str) -> None:
        assert (text in self.session.explain()) == (how == "has"), self.session.explain()

    def query(self, name: str) -> hr.Query:
        found = self.session.find(name)
        assert found is not None, f"query '{name}' was never added"
        return found


def table(lines: list[str], schema: pa.Schema) -> list[dict[str, Any]]:
    parts = [[part.strip() for part in line.split("|")] for line in lines]
    return [{f.name: value(part, f.type) for f, part in zip(schema, row, strict=True)} for row in parts]


def value(text: str, kind: pa.DataType) -> Any:
    if text == "NULL":
        return None
    if pa.types.is_timestamp(kind):
        hours, minutes, seconds = text.split(":")
        return DAY + timedelta(hours=int(hours), minutes=int(minutes), microseconds=round(float(seconds) * 1e6))
    readers = {pa.bool_(): "true".__eq__, pa.date32(): date.fromisoformat, pa.string(): lambda t: t.strip("'")}
    numeric = Decimal if pa.types.is_decimal(kind) else int if pa.types.is_integer(kind) else float
    return readers.get(kind, numeric)(text)


def run_case(case: Path, session: hr.Session) -> None:
    """Run all commands of a case; raises AssertionError where the session does not do what the case expects."""
    runner = CaseRunner(session)
    for command in parse(case.read_text()):
        runner.run(command)
