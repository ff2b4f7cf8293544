"""Options of sinks that publish batches: what is refused, what a service may limit, and no secret in any of them."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from headrace.connectors import DeltaSink, IcebergSink, KafkaSink, PostgresSink, WebhookSink, parse_sink, sink_from_json
from headrace.connectors.sinks.destination import parse_names, to_text_options
from headrace.errors import SinkError

KAFKA = {"kind": "kafka", "brokers": "a:1, b:2", "topic": "t"}
ICEBERG = {"kind": "iceberg", "table": "shop.revenue"}
POSTGRES = {"kind": "postgres", "url": "postgresql://user@db:5432/shop", "table": "revenue"}
WEBHOOK = {"kind": "webhook", "url": "https://host:8443/secret-path"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**KAFKA, "topic": ""}, "option 'topic' of the kafka sink is missing"),
        ({**KAFKA, "brokers": 5}, "option 'brokers' of the kafka sink is missing"),
        ({**KAFKA, "bootstrap.servers": "x"}, "is chosen by headrace"),
        ({**KAFKA, "sasl.password": "open"}, "option 'sasl.password' is a secret"),
        ({**KAFKA, "key": 5}, "option 'key' of the sink is 5"),
        ({**KAFKA, "headers": ["a", 5]}, "option 'headers' of the sink is"),
        ({**KAFKA, "options": "x"}, "which is not a table of options"),
        ({**KAFKA, "topics": "t"}, "did you mean 'topic'?"),
        ({"kind": "kafka", "topic": "t"}, "option 'brokers' of the kafka sink is missing"),
        ({"kind": "noop", "path": "x"}, "unknown option 'path' of the noop sink\ndetail: options: none"),
        ({"kind": "delta", "path": "x", "storage_options": {"A_SECRET": "x"}}, "option 'A_SECRET' of the delta sink is a secret"),
        ({"kind": "delta", "path": "x", "storage_options.aws_Key": "x"}, "option 'aws_Key' of the delta sink is a secret"),
        ({**ICEBERG, "table": "revenue"}, "write NAMESPACE.TABLE"),
        ({**ICEBERG, "catalog.s3.secret-access-key": "open"}, "option 's3.secret-access-key' is a secret"),
        ({**ICEBERG, "catalog": {"uri": "postgresql://user:open@db/x"}}, "option 'uri' of the catalog has a password"),
        ({**POSTGRES, "url": "mysql://db/shop"}, "is not that of a Postgres server"),
        ({**POSTGRES, "url": "postgresql://user:open@db/shop"}, "option 'url' of the postgres sink has a password"),
        ({**POSTGRES, "url": "postgresql://db/shop?password=open"}, "option 'url' of the postgres sink has a password"),
        ({**POSTGRES, "password": "open"}, "option 'password' is a secret"),
        ({**POSTGRES, "table": ""}, "option 'table' of the postgres sink is ''"),
        ({**POSTGRES, "table": "shop."}, "option 'table' of the postgres sink is 'shop.'"),
        ({**POSTGRES, "table": "shop.headrace_marks"}, "has the marks of sinks"),
        ({**WEBHOOK, "url": "ftp://host"}, "is not an HTTP address"),
        ({**WEBHOOK, "url": "https:///path"}, "is not an HTTP address"),
        ({**WEBHOOK, "url": "https://user@host"}, "option 'url' of the webhook sink has a password"),
        ({**WEBHOOK, "url": "https://:open@host"}, "option 'url' of the webhook sink has a password"),
        ({**WEBHOOK, "secret": "open"}, "option 'secret' is a secret"),
        ({**WEBHOOK, "headers": {"AUTHORIZATION": "open"}}, "option 'AUTHORIZATION' is a secret"),
        ({**WEBHOOK, "max_rows": "many"}, "are numbers"),
        ({**WEBHOOK, "max_rows": 0}, "is not in 1 … 10,000"),
        ({**WEBHOOK, "max_rows": 10_001}, "is not in 1 … 10,000"),
        ({**WEBHOOK, "timeout": 0}, "'timeout' is not positive"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(spec, message: str):
    with pytest.raises(SinkError, match=re.escape(message)) as caught:
        parse_sink(spec)
    assert "open" not in str(caught.value)


def test_valid_options_are_taken_in_every_spelling():
    kafka = sink_from_json(
        {**KAFKA, "linger.ms": 5, "options": {"acks": "all"}, "key": "a, b,", "options.sasl.password": "env:P"}
    )
    assert kafka == KafkaSink("a:1, b:2", "t", ("a", "b"), options={"acks": "all", "linger.ms": "5", "sasl.password": "env:P"})
    assert sink_from_json({**ICEBERG, "catalog.type": "sql"}) == IcebergSink("shop.revenue", {"type": "sql"})
    assert sink_from_json({**ICEBERG, "catalog": {"token": "env:T"}}).catalog == {"token": "env:T"}
    for rows in (1, 10_000, "7"):
        assert parse_sink({**WEBHOOK, "max_rows": rows, "secret": "env:S", "headers": {"Cookie": "file:/c", "X-Team": "a"}})
    assert WebhookSink("http://h", max_rows="7", timeout="0.5").max_rows == 7
    assert parse_sink({**POSTGRES, "password": "file:/p", "table": "shop.revenue"})
    assert parse_sink("out.delta") == parse_sink({"delta": "out.delta"}) == DeltaSink("out.delta")


def test_names_and_options_are_read_as_text():
    assert parse_names(" a, b,,", "key") == parse_names(["a ", "b", " "], "key") == ("a", "b")
    assert to_text_options({"a": True, "b": 5, "c": "False"}, "options") == {"a": "true", "b": "5", "c": "False"}


def test_columns_that_a_query_does_not_have_are_refused():
    schema = pa.schema({"a": pa.int64()})
    for sink, option in (
        (DeltaSink("x", partition_by="b"), "partition_by"), (PostgresSink("postgresql://h/d", "t", key="b"), "key"),
        (KafkaSink("h:1", "t", key="a,b"), "key"), (KafkaSink("h:1", "t", headers="b"), "headers"),
    ):  # fmt: skip
        with pytest.raises(SinkError, match=f"option '{option}' of the {sink.kind} sink names column 'b'"):
            sink.check_columns(schema)
    DeltaSink("x", partition_by="a").check_columns(schema)
    PostgresSink("postgresql://h/d", "t", key="a").check_columns(schema)


def test_a_service_knows_the_hosts_and_the_folders_of_a_sink():
    assert parse_sink({**KAFKA, "format_options": {"registry": "http://r:8081/x"}}).list_hosts() == ["a:1", "b:2", "r:8081"]
    assert parse_sink(KAFKA).list_hosts() == ["a:1", "b:2"]
    assert parse_sink(WEBHOOK).list_hosts() == ["host:8443"]
    assert parse_sink(POSTGRES).list_hosts() == ["db:5432"]
    spread = PostgresSink("postgresql://db/shop?host=other&hostaddr=10.0.0.1", "t")
    assert spread.list_hosts() == ["db", "other", "10.0.0.1"]
    assert IcebergSink("a.b", {"uri": "http://user@rest:8181/x"}).list_hosts() == ["rest:8181"]
    assert IcebergSink("a.b").list_hosts() == DeltaSink("x").list_hosts() == []
    assert DeltaSink("/data/t").list_paths() == ["/data/t"]
    assert KafkaSink("h:1", "t").list_paths() == []


@pytest.mark.parametrize(
    ("catalog", "paths"),
    [
        ({}, []),
        ({"uri": "sqlite:////data/c.db", "warehouse": "file:///data/w"}, ["/data/c.db", "/data/w"]),
        ({"uri": "sqlite://", "warehouse": "s3://bucket/w"}, ["s3://bucket/w"]),
        ({"uri": "http://h/:///x", "type": "rest", "warehouse": "main"}, []),
        ({"type": "sql", "warehouse": "main"}, ["main"]),
        ({"type": "rest", "warehouse": "/data/w"}, ["/data/w"]),
        ({"warehouse": "file://host/w"}, ["file://host/w"]),
        ({"warehouse": "file:///w?x"}, ["file:///w?x"]),
        ({"warehouse": "file:///w#x"}, ["file:///w#x"]),
    ],
)
def test_the_paths_of_a_catalog_are_its_database_and_its_warehouse(catalog, paths):
    assert IcebergSink("a.b", catalog).list_paths() == paths


def test_no_description_shows_what_may_be_a_secret():
    specs = (KAFKA, {"kind": "delta", "path": "/t"}, ICEBERG, POSTGRES, WEBHOOK)
    assert [parse_sink(spec).describe() for spec in specs] == [
        "kafka:t", "delta:/t", "iceberg:shop.revenue", "postgres:revenue", "webhook:host:8443",
    ]  # fmt: skip


def test_a_sink_that_is_not_known_is_refused_with_those_that_are():
    for spec, what in (({}, "none"), ({"xml": 1, "path": 2}, "xml, path")):
        with pytest.raises(SinkError, match=f"unknown sink with the options {what}\n"):
            parse_sink(spec)
    with pytest.raises(SinkError, match=r"with the kinds kafka, iceberg, postgres, webhook$"):
        parse_sink("xml")


def test_a_format_that_cannot_have_the_columns_is_refused():
    with pytest.raises(SinkError, match="the kafka sink: "):
        KafkaSink("127.0.0.1:1", "t", format="raw").check_columns(pa.schema({"a": pa.int64(), "b": pa.int64()}))


def test_the_path_of_a_table_is_absolute_and_its_partitions_are_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sink = DeltaSink("out", partition_by="a, b", storage_options={"timeout": 5})
    assert (sink.path, sink.partition_by, sink.storage_options) == (f"{tmp_path}/out", ("a", "b"), {"timeout": "5"})


def test_options_are_normal_whatever_their_spelling():
    assert IcebergSink("a.b", {"strict": True, "size": 5}).catalog == {"strict": "true", "size": "5"}
    assert PostgresSink("postgresql://h/d", "t", key=" a,b").key == ("a", "b")
    assert WebhookSink("http://h", headers={"X-Team": 5}).headers == {"X-Team": "5"}


@pytest.mark.parametrize("spec", [{"kind": "delta", "path": "/t", "partition_by": "a"}, ICEBERG, {**POSTGRES, "key": "a"}])
def test_a_library_that_is_missing_is_named_before_the_query_runs(spec, monkeypatch):
    sink = parse_sink(spec)
    monkeypatch.setattr(type(sink), "destination_class", ("headrace.no_such_module", "X"))
    with pytest.raises(SinkError, match=rf"pip install 'headrace\[{sink.kind}\]'"):
        sink.check_columns(pa.schema({"a": pa.int64()}))
