"""Streams of list elements: their names, and the order in which they are computed."""

from __future__ import annotations

import pyarrow as pa

from headrace.model.expression import Call, Column, Literal
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.derived import collect_unnested, resolve_declared_names, unnest_stream

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
