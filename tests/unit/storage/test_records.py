"""The JSON form of records: values come back equal and with their types, whatever the classes are called by then."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.record import copy_record, record, render_record
from headrace.model.types import TIMESTAMP
from headrace.storage.records import decode_records, encode_records


@record("test-color")
class Color(Enum):
    RED = 1


@record("test-point")
@dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any = 7
    cache: dict[str, int] = field(default_factory=dict, init=False)


@record("test-counter")
@dataclass(slots=True)
class Counter:
    n: int


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.binary()
)
TIMES = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(fold=0)) | st.dates()
KEYS = st.integers() | st.text() | st.tuples(st.text(), st.integers())
VALUES = st.recursive(
    PLAIN | TIMES | st.sampled_from([Color.RED, pa.int32(), TIMESTAMP, pa.decimal128(10, 2), pa.list_(pa.string()), pa.null()]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.frozensets(st.integers() | st.text())
        | st.builds(Point, inner, inner)
    ),
)


def send(value: Any) -> Any:
    return decode_records(json.loads(encode_records(value)))


@given(VALUES)
def test_values_come_back_equal_and_with_their_types(value: Any):
    assert describe(send(value)) == describe(value)


def describe(value: Any) -> Any:
    """The value with the types of everything in it."""
    if isinstance(value, Point):
        return Point, describe(value.x), describe(value.y)
    if isinstance(value, list | tuple):
        return type(value), [describe(item) for item in value]
    if isinstance(value, frozenset):
        return frozenset, sorted(map(repr, value))
    if isinstance(value, dict):
        return [(describe(key), describe(item)) for key, item in value.items()]
    return type(value), repr(value)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -0.0, 1.0, Decimal("1.10"), date(1, 1, 1), datetime.max.replace(tzinfo=UTC)]
)
def test_special_values(value: Any):
    assert repr(send(value)) == repr(value)


def test_a_record_that_occurs_twice_is_one_object_again():
    shared = Point(1)
    left, right = send((Point(shared, 1), Point(shared, 2)))
    assert left.x is right.x


def test_equal_immutable_records_are_one_object_and_mutable_ones_are_not():
    first, second = send((Point(1), Point(1)))
    assert first is second
    ones = send((Counter(1), Counter(1)))
    assert ones == (Counter(1), Counter(1))
    assert ones[0] is not ones[1]


def test_the_text_names_declared_names_only():
    assert json.loads(encode_records(Point((1, Color.RED), None))) == {
        "records": {"test-point": ["x", "y"], "test-color": ["value"]},
        "nodes": [["test-color", 1], ["test-point", [1, {"ref": 0}], None]],
        "root": {"ref": 1},
    }
    assert render_record(Point(("a", pa.int32()), [Color.RED])) == "test-point(x=['a', int32], y=[test-color(value=1)])"
    assert render_record(frozenset({"b", "a"})) == "{'a', 'b'}"


def test_a_missing_field_has_its_default_and_an_unknown_field_is_refused():
    document = {"records": {"test-point": ["x"]}, "nodes": [["test-point", 1]], "root": {"ref": 0}}
    assert decode_records(document) == Point(1, 7)
    with pytest.raises(ValueError, match="record 'test-point' has an unknown field 'z'"):
        decode_records({**document, "records": {"test-point": ["z"]}})
    with pytest.raises(ValueError, match="required positional argument"):
        decode_records({"records": {"test-point": ["y"]}, "nodes": [["test-point", 1]], "root": {"ref": 0}})
    with pytest.raises(ValueError, match="unknown record 'test-line'"):
        decode_records({"records": {"test-line": []}, "nodes": [], "root": None})


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"records": {}, "nodes": [["test-point"]], "root": 0}, {"records": {}, "nodes": [], "root": {"ref": 3}}],
)
def test_other_documents_are_refused(document: Any):
    with pytest.raises(ValueError, match="not a document of records"):
        decode_records(document)


@pytest.mark.parametrize("value", [object(), np.arange(3), pa.array([1]), lambda: 1, Point(object())])
def test_values_without_a_stored_form_are_refused(value: Any):
    with pytest.raises(TypeError, match="has no stored form"):
        encode_records(value)


def test_a_name_is_declared_once():
    with pytest.raises(ValueError, match="record 'test-point' is declared twice"):
        record("test-point")(Point)


def test_a_copy_is_equal_and_independent():
    point = Point([1])
    copy = copy_record(point)
    assert copy == point
    assert copy is not point
