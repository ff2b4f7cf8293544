"""The oracle's run of a scenario."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from headrace.backends.reference import ReferenceEngine
from headrace.model.stream import Stream
from headrace.plan.logical import LogicalQuery
from headrace.sql import bind_query
from headrace.sql.scope import Catalog
from support.strategies import AddQuery, Advance, Drain, RemoveQuery, Rows, Scenario


def run_oracle(scenario: Scenario) -> ReferenceEngine:
    """Return the reference engine after the last step; crashes do not affect it."""
    engine, declared = ReferenceEngine(), tuple(replace(stream, delay=0) for stream in scenario.streams)
    for stream in scenario.streams:
        engine.add_stream(stream)
    pending: dict[str, list[dict[str, Any]]] = {}
    for step in scenario.steps:
        if isinstance(step, AddQuery):
            engine.add(step.name, _bind(step.sql, declared))
        elif isinstance(step, RemoveQuery):
            engine.remove(step.name)
        elif isinstance(step, Rows):
            pending.setdefault(step.stream, []).extend(step.rows)
        elif isinstance(step, Advance):
            engine.advance(pending)
            pending = {}
        elif isinstance(step, Drain):
            engine.drain()
    return engine


@lru_cache(maxsize=8192)
def _bind(sql: str, streams: tuple[Stream, ...]) -> LogicalQuery:
    """Bind a query, cached: the same texts repeat. Streams are passed without their delay, which does not affect binding."""
    return bind_query(sql, Catalog.of(streams))


def list_batches(scenario: Scenario) -> list[dict[str, list[dict[str, Any]]]]:
    """Return the rows of each micro-batch, by stream."""
    result: list[dict[str, list[dict[str, Any]]]] = []
    pending: dict[str, list[dict[str, Any]]] = {}
    for step in scenario.steps:
        if isinstance(step, Rows):
            pending.setdefault(step.stream, []).extend(step.rows)
        elif isinstance(step, Advance):
            result.append(pending)
            pending = {}
    return result
