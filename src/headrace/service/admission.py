"""Whether a query is let in: not if all results would then come later than was promised.

How long a micro-batch takes now is measured; how much more work there would be is estimated by the model that plans. What a
batch takes at least, whatever is in it, does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.service.insight import addition_to
from headrace.service.refusals import RefusedError
from headrace.session import Done, Session

_LATELY = 30  # batches


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long micro-batches take now, and would take with a query; `growth` is that of the work."""

    now_s: float
    then_s: float
    growth: float
    alone: float


def forecast(session: Session, sql: str) -> Forecast | None:
    """Return what a query would do to the length of micro-batches; None before there is anything to go by."""
    done = [one for one in session.done() if one.report.rows][-_LATELY:]
    if len(done) < 3:
        return None
    found = addition_to(session, sql)
    if found.before <= 0:
        return None
    floor, now = min(one.seconds for one in done), _high(done)
    growth = found.after / found.before
    return Forecast(now, floor + (now - floor) * growth, growth, found.alone)


def admit(session: Session, sql: str, bound_s: float) -> None:
    """Refuse a query that would push the length of micro-batches over a bound."""
    expected = forecast(session, sql)
    if expected is not None and expected.then_s > bound_s and expected.growth > 1:
        raise RefusedError(
            429,
            f"with this query results would come after {expected.then_s:.2f} s, and {bound_s:.2f} s are promised",
            detail=f"now they come after {expected.now_s:.2f} s; the work of all would grow by {expected.growth - 1:.1%}",
            hint="remove a query, select fewer rows or group by fewer keys; or ask for a higher bound",
            retry_s=60,
        )


def _high(done: Sequence[Done]) -> float:
    lengths = sorted(one.seconds for one in done)
    return lengths[int(0.95 * (len(lengths) - 1))]
