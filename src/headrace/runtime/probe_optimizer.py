"""The optimizer of multi-way joins at work: what batches show, and from when on joins are worked off otherwise.

An epoch is a few batches. What was sampled in one is looked at in the next, beside the pipeline, and a new plan is in force from
the one after it; so nobody waits for the solver, and new queries are answered by the first orders that serve until then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum

from headrace.errors import SessionError
from headrace.execution.job import Outcome
from headrace.execution.multiway.sampling import Sample, selectivities
from headrace.runtime.state import EngineState
from headrace.sharing.multiway.alone import common_subplans, individually
from headrace.sharing.multiway.asked import Asked
from headrace.sharing.multiway.cost import Windowed
from headrace.sharing.multiway.loosening import loose_conditions
from headrace.sharing.multiway.optimize import optimize
from headrace.sharing.multiway.probes import Choice, Orders, ProbePlan, Target
from headrace.sharing.multiway.relations import Join
from headrace.sharing.multiway.strategy import Plan, ProbeOrder, Solved, Store, Strategy

_LOG = logging.getLogger(__name__)
_SECOND = 1_000_000
_KEPT = 6  # samples of a relation
_GAIN = 0.8  # a plan is changed when the new one costs less than this part of the old
_GUESS = 1_000.0  # rows a second of a relation that nothing is known of
_PATIENCE = 2  # batches of a query in which nothing is decided on a guess: a rate is known from the second batch on


class Sharing(StrEnum):
    """How far multi-way joins are worked off together."""

    GLOBAL = "global"  # one plan for all, the cheapest as a whole
    COMMON = "common"  # each query as is best for it alone; what is equal in them is done once
    NONE = "none"  # nothing is shared: every query has stores of its own


def sharing_of(text: str) -> Sharing:
    """Return how far joins are worked off together, as users say it."""
    try:
        return Sharing(text)
    except ValueError:
        raise SessionError(f"multiway={text!r} cannot be", hint=f"it is one of: {', '.join(Sharing)}") from None


class ProbeOptimizer:
    """Remembers samples; looks at joins again when queries came or went, and every few batches."""

    def __init__(
        self, every: int = 4, *, sharing: Sharing = Sharing.GLOBAL, time_limit: float = 1.0, beside: bool = True
    ) -> None:
        """Look every so many batches; `beside` the pipeline, or (in tests) at once."""
        self.sharing = sharing
        self._every, self._time_limit = every, time_limit
        self._pool = ThreadPoolExecutor(1, "probe-optimizer") if beside else None
        self._samples: dict[str, list[Sample]] = {}
        self._waiting: Future[Choice | None] | None = None
        self._looked_at: tuple[int, ...] = ()
        self._looked = -1
        self.solved: Solved | None = None

    def note(self, outcomes: Sequence[Outcome]) -> None:
        """Take what a batch showed."""
        for header in (header for outcome in outcomes for header in outcome.headers):
            for relation, found in header.shown.items():
                kept = self._samples.setdefault(relation, [])
                kept += found
                del kept[:-_KEPT]

    def decide(self, state: EngineState, probes: ProbePlan) -> Choice | None:
        """Return how joins are worked off from the next batch on; None: as they are."""
        if self._waiting is not None:
            if not self._waiting.done():
                return None
            found = self._answer(self._waiting)
            self._waiting = None
            if found is not None:
                return found
        queries = tuple(one.id for one in probes.queries)
        known = all(self._samples.get(name) for name in probes.ranks) and not _too_early(state, probes)
        if not known or (queries == self._looked_at and state.batch - self._looked < self._every):
            return None
        self._looked_at, self._looked = queries, state.batch
        figures, parts = self.figures(state, probes), state.partitions
        return self._run(lambda: self._improved(probes, figures, parts))

    def _answer(self, waiting: Future[Choice | None]) -> Choice | None:
        """Return what was found; joins go on as they are if the search for something better went wrong."""
        try:
            return waiting.result()
        except Exception:  # noqa: BLE001  it only advises
            _LOG.exception("the optimizer of multi-way joins failed; they go on as they are")
            return None

    def close(self) -> None:
        """Let nobody wait for an answer any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], Choice | None]) -> Choice | None:
        if self._pool is None:
            return work()
        self._waiting = self._pool.submit(work)
        return None

    def figures(self, state: EngineState, probes: ProbePlan) -> Windowed:
        """Return what is known of rates, windows and selectivities."""
        rates, windows = {}, {}
        for name in probes.ranks:
            stream = state.streams[probes.streams[name]]
            rates[name] = max(1e-3, (stream.rate or _GUESS) * self._wanted(name))
            ranges = [one.inputs[name].range for one in probes.queries if name in one.inputs]
            windows[name] = max(ranges) / _SECOND or 1e-6
        return Windowed(rates, windows, selectivities(probes.queries, self._samples))

    def _wanted(self, relation: str) -> float:
        """Return the part of a stream's rows that matter to somebody as rows of a relation."""
        samples = self._samples.get(relation, ())
        return sum(one.rows for one in samples) / max(1, sum(one.seen for one in samples)) if samples else 1.0

    def _improved(self, probes: ProbePlan, figures: Windowed, parts: int) -> Choice | None:
        """Return a choice that costs clearly less than the one in force, if there is one."""
        queries = [one for one in probes.queries if one.join.is_connected()]
        if not queries:
            return None
        now = common_subplans([_strategy(queries, probes.choice)], figures, parts)
        if self.sharing is Sharing.GLOBAL:
            loose = loose_conditions(queries, figures.selectivities)
            queries = [replace(one, loose=loose) for one in queries]
            best = optimize([one.join for one in queries], figures, parts, time_limit=self._time_limit)
        else:
            alone = individually([one.join for one in queries], figures, parts, time_limit=self._time_limit)
            best = common_subplans(alone, figures, parts)
        self.solved = best.solved
        return _choice(queries, best) if best.cost < _GAIN * now.cost else None


def _too_early(state: EngineState, probes: ProbePlan) -> bool:
    """Tell whether a rate is not known yet that one more batch would show."""
    newest = max(state.queries[one.id].first_batch for one in probes.queries)
    return state.batch - newest < _PATIENCE and not all(state.streams[probes.streams[name]].rate for name in probes.ranks)


def _strategy(queries: Sequence[Asked], choice: Choice) -> Strategy:
    """Return orders that are in force as the optimizers know them."""
    asked = {one.join: _plan(one.join, choice.queries[one.id]) for one in queries}
    kept = tuple(_plan(join, orders) for join, orders in choice.kept.items())
    return Strategy(tuple(asked.values()), kept, 0.0, 0.0, Solved("greedy", 1.0))


def _plan(join: Join, orders: Orders) -> Plan:
    found = (ProbeOrder(start, tuple(Store(one.relation, one.by) for one in orders[start])) for start in sorted(orders))
    return Plan(join, tuple(found))


def _choice(queries: Sequence[Asked], found: Strategy) -> Choice:
    orders = {plan.join: _orders(plan) for plan in (*found.queries, *found.kept)}
    kept = {plan.join: orders[plan.join] for plan in found.kept}
    return Choice({one.id: orders[one.join] for one in queries}, kept, queries[0].loose)


def _orders(plan: Plan) -> Orders:
    return {one.start: tuple(Target(store.relation, store.by) for store in one.stores) for one in plan.orders}
