"""The host of a served session: it runs micro-batches, admits queries and readers, and owns logs and subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

from headrace.connectors import Range
from headrace.connectors.read import read_range
from headrace.errors import NotFoundError
from headrace.model.schema import Schema
from headrace.query import Query
from headrace.service.admission import admit
from headrace.service.chronicle import Chronicle
from headrace.service.declared import Declarations
from headrace.service.following import Followers
from headrace.service.insight import Insight, insight_of
from headrace.service.kept import Kept
from headrace.service.limits import Limits
from headrace.service.news import News
from headrace.service.refusals import RefusedError
from headrace.service.reports import Reports
from headrace.service.tokens import Holder, Tokens
from headrace.session import Session

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_INSIGHT_SECONDS = 2.0
_LATELY_SECONDS = 10.0
_TIDY_SECONDS = 10.0


class Host:
    """A session and its surroundings, for as long as the service runs."""

    def __init__(
        self,
        session: Session,
        tokens: Tokens,
        limits: Limits,
        *,
        interval: float = 0.0,
        reports: Path | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        """Take a session whose streams are declared; micro-batches start at least `interval` seconds apart.

        `reports` is the folder of benchmark reports, which may be missing. `origins` are the web origins that CORS allows.
        """
        self.session, self.tokens, self.limits, self.origins = session, tokens, limits, origins
        folder = session.coordinator.checkpoint.path
        self.chronicle = Chronicle(session, folder / "service-events.jsonl")
        self.kept, self.news = Kept(session, limits.results_bytes), News(session, self.chronicle.update)
        self.followers = Followers(self.kept, self.news, limits.event_rows)
        self.declarations = Declarations(session, folder / "service-streams.json")
        self.reports = Reports(reports, limits.report_bytes)
        self.version = metadata.version("headrace")
        self._begun = time.monotonic()
        self.readers = 0
        self._interval = interval
        self._changing, self._looking = threading.Lock(), threading.Lock()
        self._insight: Insight | None = None
        self._looked = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run micro-batches and the notifier until the end of the block."""
        self.session.start(self._interval)
        self.news.start()
        tidying = asyncio.create_task(self._tidy())
        try:
            yield
        finally:
            tidying.cancel()
            self.news.end()
            await anyio.to_thread.run_sync(self.news.join)

    async def _tidy(self) -> None:
        """Apply the retention of results every few seconds."""
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            try:
                await anyio.to_thread.run_sync(self.kept.forget)
            except OSError:  # for example a full disk: the next attempt may succeed
                _LOG.exception("cannot delete results that are past their retention")

    def now(self) -> datetime:
        """Return the current time."""
        return datetime.now(UTC)

    def health(self) -> dict[str, Any]:
        """Return whether micro-batches run, with the fields of `Health`."""
        return {
            "status": "stopped" if self.news.over else "ok",
            "detail": self.news.failure,
            "batch": self.session.last_batch,
            "queries": len(self.session.queries()),
            "uptime_seconds": time.monotonic() - self._begun,
            "version": self.version,
            "tokens": self.tokens.required,
        }

    def rate(self, stream: str) -> float:
        """Return the recent rate of a stream, in rows per second of event time."""
        return self.session.coordinator.state.streams[stream].rate

    def insight(self) -> Insight:
        """Return statistics of all queries; cached for two seconds, because they take long with thousands of queries."""
        with self._looking:
            if self._insight is None or time.monotonic() - self._looked > _INSIGHT_SECONDS:
                self._insight, self._looked = insight_of(self.session), time.monotonic()
            return self._insight

    def sample(self, stream: str, schema: Schema, max_rows: int) -> pa.Table:
        """Return up to `max_rows` rows of a stream that the last micro-batch read."""
        entry = self.session.coordinator.checkpoint.read_log_entry(self.session.last_batch) or {"tasks": []}
        ranges = [
            Range.from_json(input_range) for task in entry["tasks"] for input_range in task if input_range["stream"] == stream
        ]
        if not ranges:
            return schema.to_arrow().empty_table()
        rows = read_range(ranges[-1], schema, [field.name for field in schema.fields])
        return rows.slice(max(0, rows.num_rows - max_rows))

    def query(self, name: str, query_id: int | None = None) -> Query:
        """Return the newest query of a name, live or not, or the query with that id; raises NotFoundError."""
        query = self.session.find(name, query_id)
        if query is None:
            live_names = ", ".join(live_query.name for live_query in self.session.queries()[:20]) or "none"
            raise NotFoundError(f"query '{name}' does not exist", detail=f"queries: {live_names}")
        return query

    def add(self, sql: str, name: str | None, holder: Holder) -> Query:
        """Add a query for a user; raises if it is rejected."""
        self._check_text(sql)
        with self._changing:
            self._admit(holder)
            self._forecast(sql)
            return self.session.add(sql, name=name, owner=holder.user)

    def _forecast(self, sql: str) -> None:
        if self.limits.latency_s is not None:
            admit(self.session, sql, self.limits.latency_s)

    def _admit(self, holder: Holder, replaced: str | None = None) -> None:
        """Reject a query above the limits of the service or the user; a query to be replaced does not count."""
        queries = [query for query in self.session.queries() if query.name != replaced]
        waiting = sum(query.status == "accepted" for query in queries)
        own = sum(query.owner == holder.user for query in queries) if holder.user else 0
        for count, limit, description, retry_s in (
            (waiting, self.limits.waiting, "queries wait to become live", self._batch_seconds()),
            (len(queries), self.limits.queries, "queries exist", 60.0),
            (own, self.limits.queries_per_user, f"queries belong to user '{holder.user}'", 60.0),
        ):
            if count >= limit:
                hint = "try again later" if count == waiting else "remove a query"
                raise RefusedError(429, f"{count} {description}, which is the limit", hint=hint, retry_s=retry_s)

    def replace(self, name: str, sql: str, holder: Holder) -> Query:
        """Replace a query: the old one is removed and the new one added in the same micro-batch, or neither."""
        self._check_text(sql)
        with self._changing:
            self._admit(holder, replaced=name)
            self._forecast(sql)
            return self.session.replace(name, sql, owner=holder.user)

    def check(self, sql: str) -> pa.Schema:
        """Return the output columns of a query without adding it; raises if the query is invalid."""
        self._check_text(sql)
        return self.session.check(sql)

    def remove(self, name: str) -> None:
        """Remove a query; its results stay readable."""
        with self._changing:
            self.session.remove(name)

    async def live(self, query: Query, seconds: float) -> bool:
        """Wait until a query is live or finished; False if it is still waiting after `seconds`."""
        deadline = time.monotonic() + seconds
        while query.status == "accepted" and (remaining := deadline - time.monotonic()) > 0:
            await self.news.after(self.session.last_batch, min(remaining, _LOOK_SECONDS))
            if self.news.over:
                break
        return query.status != "accepted"

    def enter(self) -> Callable[[], None]:
        """Take a slot for a live reader and return the function that releases it; raises above the limit."""
        if self.readers >= self.limits.readers:
            raise RefusedError(
                429, f"{self.readers} live readers are connected, which is the limit", hint="try again later", retry_s=10
            )
        self.readers += 1
        return self._leave

    def _leave(self) -> None:
        self.readers -= 1

    def _check_text(self, sql: str) -> None:
        limit = self.limits.sql_characters
        if len(sql) > limit:
            raise RefusedError(413, f"the query has {len(sql):,} characters; at most {limit:,} are allowed")

    def _batch_seconds(self) -> float:
        return max((batch.seconds for batch in self.session.done()[-5:]), default=1.0)
