"""Admission control: the limits of a service, and the rejection of queries that would push latency over the configured bound.

The current length of micro-batches is measured; the growth of the work is estimated by the planner's cost model. The fixed
cost of a micro-batch, taken as the shortest recent batch, does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from headrace.errors import HeadraceError
from headrace.model.budget import QueryBudget
from headrace.runtime.metrics import CommittedBatch
from headrace.service.auth import Identity, Role
from headrace.service.problems import HttpRequestError
from headrace.session import Session

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits that `headrace serve --limit` can set. Above them the service answers 429 if waiting helps, else 413 or 422."""

    body_bytes: int = 8 * _MIB
    """Size of a request body with rows."""
    small_body_bytes: int = _MIB // 4
    """Size of any other request body; a query of `sql_characters` fits even if every character is escaped."""
    bodies_bytes: int = 64 * _MIB
    """Total size of the bodies with rows that are being received, and as much again for all other bodies."""
    patience_s: float = 10
    """Idle timeout while a request body is being received; the whole body must arrive within six times that."""
    sql_characters: int = 20_000
    queries: int = 5_000
    queries_per_user: int = 1_000
    waiting: int = 500
    """Queries that are accepted but not live yet."""
    latency_s: float | None = None
    """Latency bound: admission control rejects a query that would make micro-batches longer than this."""
    connections: int = 1_500
    """Open connections of every kind, live readers included."""
    readers: int = 1_000
    page_rows: int = 10_000
    results_bytes: int = 4096 * _MIB
    results_batches: int = 1_000_000
    """Retention of results, in bytes; the oldest are deleted first."""
    event_rows: int = 1_000
    """Rows in one event sent to a live reader."""
    report_bytes: int = 64 * _MIB
    """Size of a benchmark report; larger ones are not listed."""

    def with_overrides(self, settings: Iterable[str]) -> Self:
        """Return a copy with some limits replaced; a setting looks like 'readers=200'."""
        types = {field.name: int if field.type == "int" else float for field in fields(self)}
        values: dict[str, Any] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in types:
                raise HeadraceError(f"unknown limit '{name}'", detail=f"limits: {', '.join(types)}", hint="write NAME=NUMBER")
            try:
                values[name] = types[name](value)
            except ValueError:
                raise HeadraceError(f"invalid value '{value}' for limit '{name}'", hint=f"write {name}=NUMBER") from None
            if not 0 < values[name] < float("inf"):
                raise HeadraceError(f"invalid value '{value}' for limit '{name}'", hint="give a number above 0")
        return replace(self, **values)


def choose_budget(wanted: Mapping[str, int], service: QueryBudget, holder: Identity) -> QueryBudget | None:
    """Return the budget of a query that a user adds: the limits of the request, of the user, of the service, in this order.

    None if neither request nor user has one. Raises HttpRequestError for a limit above that of the user or the service, unless
    the user is an admin.
    """
    if not wanted and not holder.budget:
        return None
    bound = service.with_limits(dict(holder.budget))
    for name, limit in wanted.items() if holder.role < Role.admin else ():
        allowed = getattr(bound, name)
        if limit > allowed:
            whose = f"user '{holder.user}'" if name in dict(holder.budget) else "the service"
            hint = f"ask for at most {allowed:,}, or use a token with the role {Role.admin.label}"
            raise HttpRequestError(403, f"budget {name} of {limit:,} is above the {allowed:,} of {whose}", hint=hint)
    return bound.with_limits(wanted)


def cap_budget(kept: QueryBudget, service: QueryBudget, holder: Identity) -> QueryBudget:
    """Return the budget that a query keeps when a user replaces it: at most that of the user, unless the user is an admin."""
    return kept if holder.role >= Role.admin else kept.capped_by(service.with_limits(dict(holder.budget)))


_RECENT_BATCHES = 30  # batches


@dataclass(frozen=True, slots=True)
class LatencyForecast:
    """How long micro-batches take now, and would take with one more query; `growth` is the factor of the work of all."""

    current_s: float
    expected_s: float
    growth: float
    standalone: float


def forecast_latency(session: Session, sql: str) -> LatencyForecast | None:
    """Return the expected length of micro-batches with a query; None while there are too few measurements."""
    batches = [batch for batch in session.done() if batch.report.rows][-_RECENT_BATCHES:]
    if len(batches) < 3:
        return None
    growth_of_work = session.statistics.estimate_growth(sql)
    if growth_of_work.before <= 0:
        return None
    floor, now = min(batch.seconds for batch in batches), _p95_seconds(batches)
    growth = growth_of_work.after / growth_of_work.before
    return LatencyForecast(now, floor + (now - floor) * growth, growth, growth_of_work.standalone)


def check_latency_bound(session: Session, sql: str, bound_s: float) -> None:
    """Reject a query that would push the length of micro-batches over a bound."""
    expected = forecast_latency(session, sql)
    if expected is not None and expected.expected_s > bound_s and expected.growth > 1:
        raise HttpRequestError(
            429,
            f"with this query the latency of results would be {expected.expected_s:.2f} s, above the bound of {bound_s:.2f} s",
            detail=f"the latency is {expected.current_s:.2f} s now; "
            f"the work of all queries would grow by {expected.growth - 1:.1%}",
            hint="remove a query, select fewer rows, group by fewer keys, or start the service with a higher --latency",
            retry_s=60,
        )


def _p95_seconds(batches: Sequence[CommittedBatch]) -> float:
    lengths = sorted(batch.seconds for batch in batches)
    return lengths[int(0.95 * (len(lengths) - 1))]
