"""The host of a served session: it runs micro-batches, admits queries and readers, and owns logs and subscriptions."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

from headrace.connectors import MemorySink, Sink, read_with_policy
from headrace.errors import NotFoundError
from headrace.model.types import Schema
from headrace.query import Query
from headrace.runtime.query_stats import QueryStats
from headrace.service.admission import ServiceLimits, cap_budget, check_latency_bound, choose_budget
from headrace.service.allowed_destinations import AllowedDestinations
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.auth import Identity, Role, TokenRegistry
from headrace.service.declared_streams import DeclaredStreams
from headrace.service.event_log import EventLog
from headrace.service.failed_attempts import FailedAttempts
from headrace.service.notifier import BatchNotifier
from headrace.service.problems import HttpRequestError
from headrace.service.reports import ReportFolder
from headrace.service.result_pages import ResultPages
from headrace.service.subscriptions import SubscriptionHub
from headrace.session import Session
from headrace.statements import SinkOptions
from headrace.storage.locations import use_storage_options

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
_STATS_CACHE_SECONDS = 2.0
_LATELY_SECONDS = 10.0


class ServiceHost:
    """A session and its surroundings, for as long as the service runs."""

    def __init__(
        self,
        session: Session,
        tokens: TokenRegistry,
        limits: ServiceLimits,
        *,
        interval: float = 0.0,
        reports: Path | None = None,
        origins: Sequence[str] = (),
        allowed_roots: Sequence[Path] = (),
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        """Take a session whose streams are declared; micro-batches start at least `interval` seconds apart.

        `reports` is the folder of benchmark reports, which may be missing. `origins` are the web origins that CORS allows.
        `allowed_roots` are the folders whose files requests may name, `allowed_hosts` the servers.
        """
        self.session, self.tokens, self.limits, self.origins = session, tokens, limits, origins
        store = session.checkpoint.store
        was_served = EventLog.exists(store)
        roots = AllowedRoots(allowed_roots, session.checkpoint.path)
        self._destinations = AllowedDestinations(allowed_hosts, roots)
        self.declared_streams = DeclaredStreams(
            session, store, self._destinations, was_served=was_served
        )  # its file before the log's
        self.event_log = EventLog(session, store)
        session.retain_results(limits.results_bytes, limits.results_batches)
        self.result_pages, self.notifier = ResultPages(session), BatchNotifier(session, self.event_log.record_batches)
        self.subscriptions = SubscriptionHub(self.result_pages, self.notifier, limits.event_rows)
        self.reports = ReportFolder(reports, limits.report_bytes)
        self.version = metadata.version("headrace")
        self.failed_attempts = FailedAttempts()
        self._started_at = time.monotonic()
        self.reader_count = 0
        self._interval = interval
        self._change_lock, self._stats_lock = threading.Lock(), threading.Lock()
        self._stats: QueryStats | None = None
        self._stats_at = 0.0

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Run micro-batches and the notifier until the end of the block."""
        self.session.start(self._interval)
        self.notifier.start()
        try:
            yield
        finally:
            self.declared_streams.stop()
            self.notifier.stop()
            await anyio.to_thread.run_sync(self.notifier.join)

    def now(self) -> datetime:
        """Return the current time."""
        return datetime.now(UTC)

    def check_health(self) -> dict[str, Any]:
        """Return whether micro-batches run, with the fields of `Health`."""
        loss, failure = self.session.loss, self.notifier.failure or self.session.problem or ""
        return {
            "status": "lost" if loss else "failing" if self.notifier.is_over or failure else "ok",
            "detail": str(loss) if loss else failure,
            "batch": self.session.last_batch,
            "queries": len(self.session.queries()),
            "streams": len(self.session.streams()),
            "uptime_seconds": time.monotonic() - self._started_at,
            "version": self.version,
            "tokens": self.tokens.required,
        }

    def stream_rate(self, stream: str) -> float:
        """Return the recent rate of a stream, in rows per second of event time."""
        return self.session.statistics.get_stream_rate(stream)

    def query_stats(self) -> QueryStats:
        """Return statistics of all queries; cached for two seconds, because they take long with thousands of queries."""
        with self._stats_lock:
            if self._stats is None or time.monotonic() - self._stats_at > _STATS_CACHE_SECONDS:
                self._stats, self._stats_at = self.session.statistics.collect(), time.monotonic()
            return self._stats

    def sample_stream(self, stream: str, schema: Schema, max_rows: int) -> pa.Table:
        """Return up to `max_rows` rows of a stream that the last micro-batch read."""
        ranges = [item for item in self.session.statistics.list_last_ranges() if item.stream == stream]
        if not ranges:
            return schema.to_arrow().empty_table()
        with use_storage_options(self.session.checkpoint.options):
            rows = read_with_policy(ranges[-1], schema, [field.name for field in schema.fields]).table
        return rows.slice(max(0, rows.num_rows - max_rows))

    def find_query(self, name: str, query_id: int | None = None) -> Query:
        """Return the newest query of a name, live or not, or the query with that id; raises NotFoundError."""
        query = self.session.find(name, query_id)
        if query is None:
            live_names = ", ".join(live_query.name for live_query in self.session.queries()[:20]) or "none"
            raise NotFoundError(f"query '{name}' does not exist", detail=f"queries: {live_names}")
        return query

    def add(
        self, sql: str, name: str | None, holder: Identity, budget: Mapping[str, int], sinks: Sequence[SinkOptions] = ()
    ) -> Query:
        """Add a query for a user, with these limits of its budget, and sinks besides the results that the service keeps.

        Raises if it is rejected.
        """
        self._check_sql_length(sql)
        targets = self._parse_sinks(sinks)
        chosen_budget = choose_budget(budget, self.session.budget, holder)
        with self._change_lock:
            self._check_query_count(holder.user)
            self._check_latency(sql)
            return self.session.add(sql, name=name, sinks=targets, owner=holder.user, budget=chosen_budget)

    def _check_latency(self, sql: str) -> None:
        if self.limits.latency_s is not None:
            check_latency_bound(self.session, sql, self.limits.latency_s)

    def _check_query_count(self, user: str, replaced: str | None = None) -> None:
        """Reject a query above the limits of the service or the user; a query to be replaced does not count."""
        queries = [query for query in self.session.queries() if query.name != replaced]
        waiting = sum(query.status == "accepted" for query in queries)
        own = sum(query.owner == user for query in queries) if user else 0
        for count, limit, description, retry_s in (
            (waiting, self.limits.waiting, "queries wait to become live", self._longest_recent_batch()),
            (len(queries), self.limits.queries, "queries exist", 60.0),
            (own, self.limits.queries_per_user, f"queries belong to user '{user}'", 60.0),
        ):
            if count >= limit:
                hint = "try again later" if count == waiting else "remove a query"
                raise HttpRequestError(429, f"{count} {description}, which is the limit", hint=hint, retry_s=retry_s)

    def replace(
        self, name: str, sql: str, holder: Identity, budget: Mapping[str, int], sinks: Sequence[SinkOptions] | None = None
    ) -> Query:
        """Replace a query: the old one is removed and the new one added in the same micro-batch, or neither.

        The owner stays the same, and so do the sinks unless others are given, and the budget unless limits are given or the user
        has lower ones by now. Raises HttpRequestError if the query belongs to another user.
        """
        self._check_sql_length(sql)
        given = None if sinks is None else self._parse_sinks(sinks)
        with self._change_lock:
            owner = self._check_owner(name, holder)
            kept = self.session.query(name).budget
            new_budget = (
                choose_budget(budget, self.session.budget, holder) if budget else cap_budget(kept, self.session.budget, holder)
            )
            self._check_query_count(owner, replaced=name)
            self._check_latency(sql)
            targets = self.session.query(name).active_sinks if given is None else given
            return self.session.replace(name, sql, sinks=targets, owner=owner, budget=None if new_budget == kept else new_budget)

    def _parse_sinks(self, sinks: Sequence[SinkOptions]) -> list[Sink]:
        """Return the sinks of a request, and the results that the service keeps; raises for one that is not allowed."""
        return [MemorySink(), *(sink for sink in map(self._destinations.parse, sinks) if not isinstance(sink, MemorySink))]

    def add_sink(self, name: str, sink: SinkOptions, holder: Identity) -> int:
        """Add a sink to a live query, and return its number; raises if it is not allowed, or for another user's query."""
        target = self._destinations.parse(sink)
        with self._change_lock:
            self._check_owner(name, holder)
            return self.session.query(name).add_sink(target)

    def remove_sink(self, name: str, number: int, holder: Identity, *, discard: bool) -> None:
        """Take a sink from a query, with what waits for it if `discard`; raises if the query belongs to another user."""
        with self._change_lock:
            self._check_owner(name, holder)
            query = self.session.query(name)
            if any(sink.number == number and sink.kind == "memory" for sink in query.sinks):
                raise HttpRequestError(409, "the service keeps the results of all queries", hint="remove another sink")
            query.remove_sink(number, discard=discard)

    def check(self, sql: str) -> pa.Schema:
        """Return the output columns of a query without adding it; raises if the query is invalid."""
        self._check_sql_length(sql)
        return self.session.check(sql)

    def remove(self, name: str, holder: Identity) -> None:
        """Remove a query; its results stay readable. Raises HttpRequestError if the query belongs to another user."""
        with self._change_lock:
            self._check_owner(name, holder)
            self.session.remove(name)

    def _check_owner(self, name: str, holder: Identity) -> str:
        """Return the owner of a query; raises HttpRequestError if the user may not change queries of that owner."""
        owner = self.session.query(name).owner
        if not holder.may_change(owner):
            message = f"query '{name}' belongs to user '{owner}'" if owner else f"query '{name}' belongs to the service"
            own = f"of user '{owner}', or one " if owner else ""
            hint = f"use a token {own}with the role {Role.write_all.label}, or add a query of your own under another name"
            raise HttpRequestError(403, f"{message}; user '{holder.user}' may not change it", hint=hint)
        return owner

    async def wait_until_live(self, query: Query, seconds: float) -> bool:
        """Wait until a query is live or finished; False if it is still waiting after `seconds`."""
        deadline = time.monotonic() + seconds
        while query.status == "accepted" and (remaining := deadline - time.monotonic()) > 0:
            await self.notifier.wait_after(self.session.last_batch, min(remaining, _POLL_SECONDS))
            if self.notifier.is_over:
                break
        return query.status != "accepted"

    def acquire_reader_slot(self) -> Callable[[], None]:
        """Take a slot for a live reader and return the function that releases it; raises above the limit."""
        if self.reader_count >= self.limits.readers:
            raise HttpRequestError(
                429, f"{self.reader_count} live readers are connected, which is the limit", hint="try again later", retry_s=10
            )
        self.reader_count += 1
        return self._release_reader_slot

    def _release_reader_slot(self) -> None:
        self.reader_count -= 1

    def _check_sql_length(self, sql: str) -> None:
        limit = self.limits.sql_characters
        if len(sql) > limit:
            raise HttpRequestError(413, f"the query has {len(sql):,} characters; at most {limit:,} are allowed")

    def _longest_recent_batch(self) -> float:
        return max((batch.seconds for batch in self.session.done()[-5:]), default=1.0)
