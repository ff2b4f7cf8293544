"""What the shared plan looks like and what each query has, takes and costs, asked of a running session.

Costs are by the model, at rates of late; latencies and bytes are measured.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.runtime.held import held
from headrace.runtime.latency import Latency, latencies
from headrace.runtime.probing import imagined
from headrace.session import DETAILED, Session
from headrace.sharing.account import Account, Charge, accounts
from headrace.sharing.charges import join_charges, operator_charges, reading_charges
from headrace.sharing.multiway.charges import probe_charges
from headrace.sharing.multiway.probes import ProbePlan
from headrace.sharing.picture import Picture, picture
from headrace.sharing.shared_plan import LiveQuery, StreamPlan, plan_stream
from headrace.sharing.statistics import measured
from headrace.sharing.what_if import Growth, what_if
from headrace.sql import bind_query

_LATELY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Insight:
    """What is known of live queries, by their ids; `latencies` only of those that emitted something lately."""

    accounts: Mapping[int, Account]
    latencies: Mapping[int, Latency]
    state_bytes: Mapping[int, int]
    rates: Mapping[int, float]
    """Rows that each emitted a second, lately."""


NOTHING = Insight({}, {}, {}, {})


def picture_of(session: Session) -> Picture:
    """Return every shared operator and which queries use it, as boxes and lines."""
    engine = session.coordinator
    return picture(list(engine.live.values()), engine.state.plans_now(), engine.probes)


def insight_of(session: Session) -> Insight:
    """Return what each query costs in company and alone, how late its results are, and what is kept for it."""
    engine = session.coordinator
    state, live, probes = engine.state, engine.live, engine.probes
    lately = [(one.report, one.at) for one in session.done()[-DETAILED - 1 :]]
    costs = accounts(_charges(session, list(live.values()), state.plans_now(), probes))
    return Insight(costs, latencies(lately, live), held(state, probes), _emission_rates(session))


def _emission_rates(session: Session) -> dict[int, float]:
    now = time.time()
    lately = [one for one in session.done()[-DETAILED:] if one.at > now - _LATELY_SECONDS]
    since = max(now - min((one.at for one in lately), default=now), 1.0)
    counts: Counter[int] = Counter()
    for one in lately:
        counts.update(one.report.emitted_by)
    return {number: count / since for number, count in counts.items()}


def addition_to(session: Session, sql: str) -> Growth:
    """Return how much work a query would add, without adding it."""
    engine = session.coordinator
    state, probes = engine.state, engine.probes
    known = {name: measured(stream.rate, stream.keys) for name, stream in state.streams.items()}

    def charged(live: Sequence[LiveQuery]) -> Iterator[Charge]:
        mine = [query for query in live if all(name in known for name in query.plan.streams)]
        plans = [plan_stream(name, [one for one in mine if name in one.plan.streams], each) for name, each in known.items()]
        return _charges(session, mine, plans, imagined(mine, probes, state.partitions, engine.prober.sharing))

    return what_if(list(engine.live.values()), bind_query(sql, engine.catalog()), charged)


def _charges(
    session: Session, live: Sequence[LiveQuery], plans: Sequence[StreamPlan], probes: ProbePlan | None
) -> Iterator[Charge]:
    engine = session.coordinator
    yield from reading_charges(live, {name: stream.rate for name, stream in engine.state.declared().items()})
    yield from operator_charges(plans, {name: stream.rate for name, stream in engine.state.streams.items()})
    yield from join_charges(live, plans, engine.join_statistics())
    if probes is not None:
        yield from probe_charges(probes, engine.prober.figures(engine.state, probes), engine.state.partitions)
