"""Options of sources as texts name them, references to secrets, and the units that make a range."""

from __future__ import annotations

import re

import pytest

from headrace.connectors.secrets import check_reference, is_reference, resolve_reference
from headrace.connectors.source import RANGE_ROWS, Range, require_attached, split_units, take_units
from headrace.connectors.source_options import SOURCE_OPTIONS, open_source, parse_connector, parse_option
from headrace.errors import SchemaError, SinkError, SourceError
from headrace.storage.posix import PosixStore

KAFKA = {"connector": "kafka", "topic": "t", "brokers": "h:1"}


@pytest.mark.parametrize(
    ("kind", "name", "text", "value"),
    [
        ("files", "path", "5", "5"),
        ("files", "header", "false", False),
        ("rate", "rows", "1_000", 1000),
        ("rate", "rows_per_second", "0.5", 0.5),
        ("kafka", "format_options", '{a = "b"}', {"a": "b"}),
        ("kafka", "start", "earliest", "earliest"),
        ("kafka", "start", "{0 = 5}", {"0": 5}),
        ("kafka", "topic", "{t}", "{t}"),
    ],
)
def test_options_are_texts_or_values_of_toml(kind, name, text, value):
    assert parse_option(kind, name, text) == value


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [("rate", "rows", "many"), ("rate", "rows", "true"), ("files", "header", "1"), ("rate", "rows", "1.5")],
)
def test_values_of_another_type_are_refused(kind, name, text):
    with pytest.raises(SchemaError, match=f"option '{name}' of connector '{kind}' has the invalid value '{text}'"):
        parse_option(kind, name, text)


def test_settings_of_a_client_and_of_a_format_are_tables():
    texts = {**KAFKA, "properties.a.b": "1", "properties.c": "2", "format": "avro", "format.field.x": "p.x", "max_ahead": "5 s"}
    settings = parse_connector(texts, "x INT")
    assert settings.connector == "kafka"
    assert settings.options == {
        "schema": "x INT", "topic": "t", "brokers": "h:1", "options": {"a.b": "1", "c": "2"}, "format": "avro",
        "format_options": {"field.x": "p.x"},
    }  # fmt: skip
    assert settings.stream_options == {"max_ahead": "5 s"}
    assert parse_connector({"connector": "rate", "rows_per_second": "5"}, "").options == {"rows_per_second": 5}


@pytest.mark.parametrize(
    ("texts", "columns", "message"),
    [
        ({}, "", "unknown connector ''"),
        ({"connector": "files"}, "", "connector 'files' needs option 'path'"),
        (KAFKA, "", "connector 'kafka' needs columns"),
        ({"connector": "rate", "rows_per_second": "5"}, "x INT", "connector 'rate' has columns of its own"),
        ({**KAFKA, "topics": "t"}, "x INT", "connector 'kafka' has no option 'topics'"),
        ({"connector": "files", "path": "p", "properties.a": "1"}, "", "connector 'files' has no option 'properties.a'"),
    ],
)
def test_unknown_and_missing_options_are_refused(texts, columns, message):
    with pytest.raises(SchemaError, match=re.escape(message)) as caught:
        parse_connector(texts, columns)
    assert not re.search(r"options: .*\bschema\b", str(caught.value)), "columns are declared, not an option of a text"


def test_a_source_is_of_its_kind(tmp_path):
    options = {
        "files": {"path": str(tmp_path), "schema": "x INT"}, "rate": {"rows_per_second": 5},
        "tcp": {"address": "127.0.0.1:1", "stream": "s"}, "kafka": {"topic": "t", "brokers": "127.0.0.1:1", "schema": "x INT"},
    }  # fmt: skip
    assert {kind: open_source(kind, options[kind]).definition()["kind"] for kind in SOURCE_OPTIONS} == {
        kind: kind for kind in SOURCE_OPTIONS
    }


def test_a_generated_stream_follows_the_clock_it_is_given(tmp_path):
    now = [100.0]
    source = open_source("rate", {"rows_per_second": 10}, lambda: now[0])
    source.attach("s", PosixStore(str(tmp_path)))
    source.plan(None, 100)
    now[0] += 2
    assert sum(split.rows for split in source.plan(None, 100)[0]) == 20


@pytest.mark.parametrize(
    ("value", "is_one"), [("env:A", True), ("file:/a", True), ("env:", False), ("A", False), ("", False), (5, False)]
)
def test_a_reference_names_a_variable_or_a_file(value, is_one):
    assert is_reference(value) is is_one
    if is_one or value == "":
        check_reference("password", value, SinkError)
    else:
        with pytest.raises(SinkError, match="option 'password' is a secret"):
            check_reference("password", value, SinkError)


def test_a_reference_is_resolved_where_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "s3cret")
    (tmp_path / "secret").write_text("from a file\n")
    assert resolve_reference("p", "env:HEADRACE_TEST_SECRET", SourceError) == "s3cret"
    assert resolve_reference("p", f"file:{tmp_path}/secret", SourceError) == "from a file"
    assert resolve_reference("p", "plain", SourceError) == "plain"
    monkeypatch.delenv("HEADRACE_TEST_SECRET")
    with pytest.raises(
        SourceError, match=r"environment variable 'HEADRACE_TEST_SECRET' with the option 'p' .*\ndetail: it is not set"
    ):
        resolve_reference("p", "env:HEADRACE_TEST_SECRET", SourceError)
    with pytest.raises(SinkError, match=r"file '.*nothing' with the option 'p' cannot be read\ndetail: .*No such file"):
        resolve_reference("p", f"file:{tmp_path}/nothing", SinkError)


def test_units_are_taken_up_to_a_limit_and_one_at_least():
    units = [5, 0, 3, 9, 1]
    assert [take_units(units, 0, limit) for limit in (0, 4, 5, 7, 8, 17, 18, 100)] == [1, 1, 2, 2, 3, 4, 5, 5]
    assert [take_units(units, start, 4) for start in range(6)] == [1, 3, 3, 4, 5, 5]


def test_a_range_has_a_limited_number_of_rows():
    half = RANGE_ROWS // 2
    assert split_units([half, half, 1, 0, 7], 0, 5) == [(0, 2, 2 * half), (2, 5, 8)]
    assert split_units([half + 1, half, 3 * half], 0, 3) == [(0, 1, half + 1), (1, 2, half), (2, 3, 3 * half)]
    assert split_units([4, 4, 4], 1, 2) == [(1, 2, 4)]
    assert split_units([0, 0], 0, 2) == split_units([4], 1, 1) == []


def test_a_range_has_the_partition_of_its_source():
    assert Range("s", "kafka", "t", 0, 1, 1, {"partition": 3}).partition == 3
    assert Range("s", "csv", "f", 0, 1, 1).partition == 0


def test_a_source_that_is_not_attached_is_refused():
    with pytest.raises(SourceError, match="source of stream 's' is not attached"):
        require_attached("s", None)
