"""A session that is being served: its changes, its readers, and what it takes on."""

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
    """Runs a session for as long as the service does."""

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
        """Take a session whose streams are declared; micro-batches are at least `interval` seconds apart.

        `reports` is where benchmarks keep their results; there need be no such folder. `origins` are sites whose pages may ask.
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
        """Run micro-batches, and tell of them, until the end of the block."""
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
        """Let go of results that are too old, now and then."""
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            try:
                await anyio.to_thread.run_sync(self.kept.forget)
            except OSError:  # a disk that is full, say: the next time it may work
                _LOG.exception("results that are too old could not be removed")

    def now(self) -> datetime:
        """Return the time of day."""
        return datetime.now(UTC)

    def health(self) -> dict[str, Any]:
        """Return whether micro-batches run."""
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
        """Return how many rows a stream has in a second of event time, lately."""
        return self.session.coordinator.state.streams[stream].rate

    def insight(self) -> Insight:
        """Return what each query has, takes and costs; reckoned anew only now and then, for it takes a while with thousands."""
        with self._looking:
            if self._insight is None or time.monotonic() - self._looked > _INSIGHT_SECONDS:
                self._insight, self._looked = insight_of(self.session), time.monotonic()
            return self._insight

    def sample(self, stream: str, schema: Schema, most: int) -> pa.Table:
        """Return rows of a stream that the last micro-batch read, if it read any."""
        entry = self.session.coordinator.checkpoint.logged(self.session.last_batch) or {"tasks": []}
        ranges = [Range.from_json(one) for task in entry["tasks"] for one in task if one["stream"] == stream]
        if not ranges:
            return schema.to_arrow().empty_table()
        rows = read_range(ranges[-1], schema, [field.name for field in schema.fields])
        return rows.slice(max(0, rows.num_rows - most))

    def query(self, name: str, number: int | None = None) -> Query:
        """Return the newest query of a name, also one that is over; or the one with that id."""
        found = self.session.find(name, number)
        if found is None:
            live = ", ".join(query.name for query in self.session.queries()[:20]) or "none"
            raise NotFoundError(f"query '{name}' is not there", detail=f"queries: {live}")
        return found

    def add(self, sql: str, name: str | None, holder: Holder) -> Query:
        """Accept a query for a user, or refuse it."""
        self._check_text(sql)
        with self._changing:
            self._admit(holder)
            self._forecast(sql)
            return self.session.add(sql, name=name, owner=holder.user)

    def _forecast(self, sql: str) -> None:
        if self.limits.latency_s is not None:
            admit(self.session, sql, self.limits.latency_s)

    def _admit(self, holder: Holder, replaced: str | None = None) -> None:
        """Refuse more queries than the service takes, in all or of one user; one that is replaced makes room."""
        queries = [query for query in self.session.queries() if query.name != replaced]
        waiting = sum(query.status == "accepted" for query in queries)
        mine = sum(query.owner == holder.user for query in queries) if holder.user else 0
        for count, most, what, retry_s in (
            (waiting, self.limits.waiting, "queries wait to become live", self._batch_seconds()),
            (len(queries), self.limits.queries, "queries are there", 60.0),
            (mine, self.limits.queries_per_user, f"queries are of user '{holder.user}'", 60.0),
        ):
            if count >= most:
                hint = "try again later" if count == waiting else "remove one"
                raise RefusedError(429, f"{count} {what}, and no more are taken", hint=hint, retry_s=retry_s)

    def replace(self, name: str, sql: str, holder: Holder) -> Query:
        """Put a query in the place of another of that name: both changes in the same micro-batch, or none."""
        self._check_text(sql)
        with self._changing:
            self._admit(holder, replaced=name)
            self._forecast(sql)
            return self.session.replace(name, sql, owner=holder.user)

    def check(self, sql: str) -> pa.Schema:
        """Return the columns that a query would have."""
        self._check_text(sql)
        return self.session.check(sql)

    def remove(self, name: str) -> None:
        """Remove a query."""
        with self._changing:
            self.session.remove(name)

    async def live(self, query: Query, seconds: float) -> bool:
        """Wait until a query is in the pipeline, or over; False if it still waits after that."""
        until = time.monotonic() + seconds
        while query.status == "accepted" and (left := until - time.monotonic()) > 0:
            await self.news.after(self.session.last_batch, min(left, _LOOK_SECONDS))
            if self.news.over:
                break
        return query.status != "accepted"

    def enter(self) -> Callable[[], None]:
        """Count a reader that stays; return what it is to call when it leaves."""
        if self.readers >= self.limits.readers:
            raise RefusedError(
                429, f"there are {self.readers} readers, and no more are served", hint="try again later", retry_s=10
            )
        self.readers += 1
        return self._leave

    def _leave(self) -> None:
        self.readers -= 1

    def _check_text(self, sql: str) -> None:
        most = self.limits.sql_characters
        if len(sql) > most:
            raise RefusedError(413, f"the query has {len(sql):,} characters, and {most:,} are taken at most")

    def _batch_seconds(self) -> float:
        return max((done.seconds for done in self.session.done()[-5:]), default=1.0)
