"""The cache of bound queries: each text is bound once for a catalog, and the memory of the cache is bounded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import SqlError
from headrace.model.function import UserFunction
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.sql import Catalog, binder

SCHEMA = Schema.parse("x INT, time TIMESTAMP")
CATALOG = Catalog.of([Stream("t", SCHEMA, "time")])
LONG = f"SELECT x AS {'a' * binder.MAX_CACHED_CHARACTERS} FROM t"


@pytest.fixture
def bound_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts in the order in which they are really bound, from an empty cache."""
    texts: list[str] = []

    def bind(text: str, catalog: Catalog) -> object:
        texts.append(text)
        return bind_text(text, catalog)

    bind_text = binder._bind_text
    monkeypatch.setattr(binder, "_bind_text", bind)
    binder._bind_cached.cache_clear()
    return texts


def test_a_text_is_bound_once(bound_texts: list[str]) -> None:
    first = binder.bind_query("SELECT x FROM t", CATALOG)
    assert binder.bind_query("SELECT x FROM t", Catalog.of([Stream("t", SCHEMA, "time")])) is first
    assert bound_texts == ["SELECT x FROM t"]


def test_an_added_query_is_bound_once(tmp_path: Path, bound_texts: list[str]) -> None:
    with hr.Session(tmp_path / "c", backend="local") as session:
        session.create_stream("t", hr.MemorySource("x INT, time TIMESTAMP"), time="time")
        session.add("SELECT x FROM t")
        session.advance()
    assert bound_texts == ["SELECT x FROM t"]


def test_a_refused_text_is_refused_again(bound_texts: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(SqlError, match="unknown column 'y'"):
            binder.bind_query("SELECT y FROM t", CATALOG)


def test_another_stream_or_function_of_the_same_name_gives_another_plan(bound_texts: list[str]) -> None:
    def bind(kind: str, digest: str) -> object:
        function = UserFunction("f", digest, (None,), pa.int32())
        stream = Stream("t", Schema.parse(f"x {kind}, time TIMESTAMP"), "time")
        return binder.bind_query("SELECT f(x) AS y FROM t", Catalog.of([stream], [function]))

    plans = [bind("INT", "1"), bind("INT", "2"), bind("STRING", "2")]
    assert all(left != right for left, right in pairwise(plans))
    assert len(bound_texts) == 3


def test_long_texts_do_not_fill_the_cache(bound_texts: list[str]) -> None:
    for _ in range(2):
        binder.bind_query(LONG, CATALOG)
    assert bound_texts == [LONG, LONG]
    assert binder._bind_cached.cache_info().currsize == 0
