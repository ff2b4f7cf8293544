"""Streams of list elements and of unions: their names and columns, and the order in which they are computed."""

from __future__ import annotations

import pyarrow as pa

from headrace.model.expression import Call, Column, Literal
from headrace.model.stream import Stream
from headrace.model.types import TIMESTAMP, Field, Schema
from headrace.plan.derived import (
    UnionBranch,
    UnitedStream,
    collect_unnested,
    resolve_declared_names,
    unite_streams,
    unnest_stream,
)

BASE = Stream("orders", Schema.parse("id INT, text STRING, time TIMESTAMP"), "time")


def split_text(separator: str) -> Call:
    return Call("split@1", (Column("text", pa.string()), Literal(separator, pa.string())), pa.list_(pa.string()))


ITEMS = unnest_stream(BASE, split_text(" "))
TAGS = unnest_stream(BASE, split_text(","))
ITEM_TAGS = unnest_stream(ITEMS.stream, split_text(","))
KNOWN = {derived.name: derived for derived in (ITEM_TAGS, TAGS, ITEMS)}


def test_equal_lists_of_a_stream_are_one_stream():
    assert unnest_stream(BASE, split_text(" ")) == ITEMS
    assert len(KNOWN) == 3


def test_the_element_is_the_last_column():
    assert ITEMS.element == Column("#3", pa.string())
    assert [field.name for field in ITEM_TAGS.stream.schema] == ["id", "text", "time", "#3", "#4"]


def test_unnested_streams_come_after_their_base_and_once():
    assert collect_unnested(["orders", ITEM_TAGS.name, ITEMS.name, TAGS.name, ITEM_TAGS.name], KNOWN) == (ITEMS, ITEM_TAGS, TAGS)
    assert collect_unnested(["orders", "unknown"], KNOWN) == ()


def test_the_declared_stream_of_an_unnested_stream():
    names = (ITEM_TAGS.name, ITEMS.name, "orders", "x")
    assert [resolve_declared_names(name, KNOWN) for name in names] == [("orders",)] * 3 + [("x",)]


FIELDS = (Field("id", pa.int32()), Field("first", TIMESTAMP), Field("second", TIMESTAMP))
TIMES = (Column("time", TIMESTAMP), Column("at", TIMESTAMP))


def unite(*seconds: str) -> UnitedStream:
    """A union of two streams with the event times `time` and `at`; `seconds` are the last columns of the branches."""
    branches = [
        UnionBranch(base, (Column("id", pa.int32()), Column("other", TIMESTAMP), Column(name, TIMESTAMP)))
        for base, name in zip(("orders", "returns"), seconds, strict=True)
    ]
    return unite_streams(FIELDS, TIMES, branches)


def test_the_event_time_of_a_union_is_the_column_that_has_it_in_all_branches():
    union = unite("time", "at")
    assert (union.stream.time, union.stream.schema.fields, union.bases) == ("second", FIELDS, ("orders", "returns"))


def test_a_union_without_such_a_column_has_a_hidden_one():
    union = unite("time", "time")
    assert (union.stream.time, union.stream.schema.names) == ("#time", ("id", "first", "second", "#time"))
    assert [branch.columns[-1] for branch in union.branches] == list(TIMES)


def test_equal_unions_are_one_stream():
    assert unite("time", "at") == unite("time", "at")
    assert unite("time", "at").name != unite("time", "time").name


def test_united_streams_come_after_the_unnested_streams_that_they_select_from():
    union = unite_streams(FIELDS[:1], TIMES[:1], [UnionBranch(ITEMS.name, (Column("id", pa.int32()),))])
    known = {**KNOWN, union.name: union}
    assert collect_unnested([union.name], known) == (ITEMS, union)
    assert resolve_declared_names(union.name, known) == ("orders",)
