"""Statements of requests: about streams, which only admins declare, and about queries, within the limits of the service."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.query import Query
from headrace.service.auth import Identity, Role, check_role
from headrace.service.host import ServiceHost
from headrace.sql.ddl import (
    AddSinkStatement,
    CreateQuery,
    CreateStream,
    DropQuery,
    DropSinkStatement,
    DropStreamStatement,
    parse_ddl,
)
from headrace.statements import describe_objects, make_number_table, parse_added_sink, parse_sink_options, replaces_query


@dataclass(frozen=True, slots=True)
class StatementOutcome:
    """The stream or the query that a statement has made, changed or dropped; or the table that it asks for."""

    stream: str | None = None
    query: str | None = None
    table: pa.Table | None = None


def run_statement(host: ServiceHost, sql: str, holder: Identity) -> StatementOutcome:
    """Run a statement for a user; raises HttpRequestError if the user may not, else the errors of what it does."""
    statement = parse_ddl(sql)
    match statement:
        case CreateStream() | DropStreamStatement():
            check_role(holder, Role.admin)
            host.declared_streams.run_statement(statement)
            return StatementOutcome(stream=statement.name)
        case CreateQuery():
            check_role(holder, Role.write)
            return StatementOutcome(query=_create_query(host, statement, holder).name)
        case AddSinkStatement():
            check_role(holder, Role.write)
            number = host.add_sink(statement.name, parse_added_sink(statement), holder)
            return StatementOutcome(query=statement.name, table=make_number_table(number))
        case DropSinkStatement():
            check_role(holder, Role.write)
            host.remove_sink(statement.name, statement.number, holder, discard=statement.discard)
            return StatementOutcome(query=statement.name)
        case DropQuery():
            check_role(holder, Role.write)
            host.remove(statement.name, holder)
            return StatementOutcome(query=statement.name)
        case _:
            return StatementOutcome(table=describe_objects(host.session, statement))


def _create_query(host: ServiceHost, statement: CreateQuery, holder: Identity) -> Query:
    sink = parse_sink_options(statement.options)
    sinks = [] if sink is None else [sink]
    if replaces_query(host.session, statement):
        return host.replace(statement.name, statement.sql, holder, {}, sinks)
    return host.add(statement.sql, statement.name, holder, {}, sinks)
