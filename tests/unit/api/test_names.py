"""Names of streams, queries and functions: what is refused, at every place that takes a name; older names still open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.cli import explain, run
from headrace.cli.terminal import BackendName
from headrace.errors import SchemaError
from headrace.model.names import MAX_NAME_CHARACTERS, check_name

INVALID_NAMES = {
    "empty": ("", "blank"),
    "blank": (" \t", "blank"),
    "number": (7, "no text"),
    "folder": (".", "means a folder"),
    "parent": ("..", "means a folder"),
    "long": ("n" * (MAX_NAME_CHARACTERS + 1), "201 characters"),
    "leading": (" a", "white space"),
    "trailing": ("a\u00a0", "white space"),
    "newline": ("a\nb", "U+000A, a control character"),
    "escape": ("a\x1b[31mb", "U+001B, a control character"),
    "nul": ("a\x00", "U+0000, a control character"),
    "override": ("a\u202eb", "U+202E, a format character"),
    "isolate": ("a\u2066b", "U+2066, a format character"),
    "zero width": ("a\u200bb", "U+200B, a format character"),
    "byte order": ("a\ufeffb", "U+FEFF, a format character"),
    "surrogate": ("a\ud800", "U+D800, a surrogate"),
    "line": ("a\u2028b", "U+2028, a line separator"),
}
SCHEMA = "k INT, time TIMESTAMP"


@pytest.fixture(scope="module")
def session() -> Iterator[hr.Session]:
    with hr.Session(backend="local", partitions=1) as opened:
        opened.create_stream("s", hr.MemorySource(SCHEMA), time="time")
        yield opened


def declare(session: hr.Session, name: object) -> None:
    session.create_stream(name, hr.MemorySource(SCHEMA), time="time")  # type: ignore[arg-type]


def add(session: hr.Session, name: object) -> None:
    session.add("SELECT k FROM s", name=name)  # type: ignore[arg-type]


def register(session: hr.Session, name: object) -> None:
    session.register_function(name, lambda k: pc.add(k, 1), "INT")  # type: ignore[arg-type]


@pytest.mark.parametrize("case", INVALID_NAMES)
@pytest.mark.parametrize(("give", "kind"), [(declare, "stream"), (add, "query"), (register, "function")])
def test_an_invalid_name_is_refused(session: hr.Session, case: str, give: Callable[..., None], kind: str):
    name, reason = INVALID_NAMES[case]
    with pytest.raises(SchemaError, match=f"invalid {kind} name") as refused:
        give(session, name)
    assert reason in refused.value.detail
    assert str(refused.value).isprintable() or "\n" in str(refused.value)
    assert not {"\x1b", "\u202e", "\u200b"} & set(str(refused.value)), "the message quotes the character itself"


@pytest.mark.parametrize("name", ["a", "höhe über null", "日本", "a.b", "...", "n" * MAX_NAME_CHARACTERS, "q-1 (copy)", "a/b"])
def test_other_names_are_accepted(name: str, session: hr.Session):
    check_name("query", name)
    declare(session, name)
    add(session, name)
    session.advance()
    assert session.query(name).status == "live"


def test_a_refused_name_has_no_effect(session: hr.Session):
    for give in (declare, add):
        with pytest.raises(SchemaError):
            give(session, "a\u202eb")
    assert not [name for name in (*session.streams(), *(query.name for query in session.queries())) if "\u202e" in name]


@pytest.mark.parametrize("table", ["streams", "queries"])
@pytest.mark.parametrize("use", [explain.command, partial(run.command, once=True, backend=BackendName.local)])
def test_names_of_a_session_file_are_checked(tmp_path: Path, table: str, use: Callable[[Path], None]):
    (tmp_path / "rows.csv").write_text("k,time\n")
    stream, query = ("a\\u202e", "q") if table == "streams" else ("s", "a\\u202e")
    (tmp_path / "s.toml").write_text(
        f'[streams."{stream}"]\npath = "rows.csv"\nschema = "{SCHEMA}"\ntime = "time"\n'
        f'[queries."{query}"]\nsql = "SELECT k FROM `{stream}`"\n'
    )
    with pytest.raises(SchemaError, match=f"invalid {'stream' if table == 'streams' else 'query'} name"):
        use(tmp_path / "s.toml")


def test_a_checkpoint_with_names_of_older_versions_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    odd = "..\u202e" + "x" * 300
    with monkeypatch.context() as patch:
        patch.setattr("headrace.runtime.stream_registry.check_name", lambda *_: None)
        patch.setattr("headrace.query.check_name", lambda *_: None)
        with hr.Session(tmp_path / "checkpoint", backend="local", partitions=1) as session:
            source = hr.MemorySource(SCHEMA)
            session.create_stream(odd, source, time="time")
            session.add(f"SELECT k FROM `{odd}`", name=odd)
            source.append([{"k": 1, "time": "2026-01-01T00:00:00Z"}])
            session.advance()
    with hr.Session(tmp_path / "checkpoint", backend="local") as session:
        source = hr.MemorySource(SCHEMA)
        session.create_stream(odd, source, time="time")
        query = session.add(f"SELECT k FROM `{odd}`", name=odd)
        source.append([{"k": 2, "time": "2026-01-01T00:00:01Z"}])
        session.advance()
        assert query.results().column("k").to_pylist() == [1, 2]
        session.remove(odd)
        session.advance()
        with pytest.raises(SchemaError, match="invalid query name"):
            session.add(f"SELECT k FROM `{odd}`", name=odd)
