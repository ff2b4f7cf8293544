"""Statements in SQL that a session runs: `Session.sql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from headrace.connectors.source_options import open_source, parse_connector
from headrace.errors import SqlError
from headrace.model.types import type_name
from headrace.query import Query
from headrace.sql.ddl import (
    AddSinkStatement,
    CreateQuery,
    CreateStream,
    DescribeObject,
    DropQuery,
    DropSinkStatement,
    DropStreamStatement,
    ShowObjects,
    parse_ddl,
)

if TYPE_CHECKING:
    from headrace.session import Session


SinkOptions: TypeAlias = str | Mapping[str, Any]
"""A sink as a statement or a request names it: a text such as "delta:/data/revenue", or options with a `kind`."""

SINK_COLUMNS = pa.schema([
    ("query", pa.string()), ("number", pa.int64()), ("sink", pa.string()), ("state", pa.string()),
    ("waiting_batches", pa.int64()), ("problem", pa.string()),
])  # fmt: skip
_QUERY_COLUMNS = pa.schema([("name", pa.string()), ("sql", pa.string())])


def run_statement(session: Session, text: str) -> Query | pa.Table | None:
    """Run a statement, as `Session.sql` does."""
    statement = parse_ddl(text)
    match statement:
        case CreateStream():
            create_stream(session, statement)
        case DropStreamStatement():
            session.drop_stream(statement.name, cascade=statement.cascade)
        case CreateQuery():
            return _create_query(session, statement)
        case AddSinkStatement():
            return make_number_table(session.query(statement.name).add_sink(parse_added_sink(statement)))
        case DropSinkStatement():
            session.query(statement.name).remove_sink(statement.number, discard=statement.discard)
        case DropQuery():
            session.remove(statement.name)
        case ShowObjects() | DescribeObject():
            return describe_objects(session, statement)
    return None


def describe_objects(session: Session, statement: ShowObjects | DescribeObject) -> pa.Table:
    """Return the table of a statement that changes nothing."""
    if isinstance(statement, DescribeObject):
        return _describe(session, statement.name)
    if statement.kind == "streams":
        return _list_streams(session)
    queries = [query for query in session.queries() if query.status in {"accepted", "live"}]
    if statement.kind == "sinks":
        return _list_sinks(queries)
    return pa.table({"name": [query.name for query in queries], "sql": [query.sql for query in queries]}, _QUERY_COLUMNS)


def replaces_query(session: Session, statement: CreateQuery) -> bool:
    """Return whether a statement replaces a query, which is there."""
    return statement.replaces and any(query.name == statement.name for query in session.queries())


def create_stream(session: Session, statement: CreateStream) -> None:
    """Declare the stream of a statement."""
    settings = parse_connector(statement.options, statement.columns)
    source = open_source(settings.connector, settings.options)
    session.create_stream(statement.name, source, time=statement.time, watermark=statement.watermark, **settings.stream_options)


def _create_query(session: Session, statement: CreateQuery) -> Query:
    sink = parse_sink_options(statement.options)
    if replaces_query(session, statement):
        return session.replace(statement.name, statement.sql, sink=sink)
    return session.add(statement.sql, name=statement.name, sink=sink)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions | None:
    """Return the sink that WITH (…) names: `sink` is its text form, or its kind, to which the other options belong."""
    others = {name: value for name, value in options.items() if name != "sink"}
    if others and "sink" not in options:
        raise SqlError(f"a query has no option '{next(iter(others))}' without a sink", hint="write WITH (sink = 'kafka', …)")
    return {"kind": options["sink"], **others} if others else options.get("sink")


def parse_added_sink(statement: AddSinkStatement) -> SinkOptions:
    """Return the sink that a statement adds; raises SqlError if it names none."""
    sink = parse_sink_options(statement.options)
    if sink is None:
        raise SqlError("ADD SINK names no sink", hint="write WITH (sink = 'kafka', …)")
    return sink


def make_number_table(number: int) -> pa.Table:
    """Return the answer to ADD SINK."""
    return pa.table({"number": pa.array([number], pa.int64())})


def _list_sinks(queries: Sequence[Query]) -> pa.Table:
    rows = [
        {
            "query": query.name,
            "number": sink.number,
            "sink": sink.description,
            "state": sink.state,
            "waiting_batches": sink.waiting_batches,
            "problem": sink.problem,
        }
        for query in queries
        for sink in query.sinks
    ]
    return pa.Table.from_pylist(rows, SINK_COLUMNS)


def _list_streams(session: Session) -> pa.Table:
    reports = session.streams()
    return pa.table(
        {
            "name": pa.array(list(reports), pa.string()),
            "source": pa.array([report["source"]["kind"] for report in reports.values()], pa.string()),
            "rows": pa.array([report["rows"] for report in reports.values()], pa.int64()),
            "lag": pa.array([report["lag"] for report in reports.values()], pa.int64()),
            "status": pa.array([report["status"] for report in reports.values()], pa.string()),
        }
    )


def _describe(session: Session, name: str) -> pa.Table:
    stream = session.catalog.find_stream(name)
    schema = session.query(name).schema if stream is None else stream.schema.to_arrow()
    return pa.table({"column": schema.names, "type": [type_name(kind) for kind in schema.types]})
