"""Runs a scenario on a session, crashes included, for comparison with the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import headrace as hr
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.sliding_join_plan import OrdersByRelation, ProbeOrderChoice, ProbeTarget, SlidingJoinPlan
from headrace.planner.join.window_join_plan import (
    JoinOrderVersion,
    count_cross_products,
    get_written_order,
    is_reorderable,
    iter_conditions,
)
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import SlidingJoinOptimizer, WindowJoinOptimizer
from support.strategies import AddQuery, Advance, Crash, Drain, RemoveQuery, Rows, Scenario


class Crashed(BaseException):
    """What a fault raises: nothing in the engine may catch it."""


@dataclass
class Fault:
    """Counts durable steps and raises at the one it was set to."""

    at: int | None = None
    crashes: int = 0

    def __call__(self, step: str) -> None:
        if self.at is None:
            return
        if self.at == 0:
            self.at = None
            self.crashes += 1
            raise Crashed(step)
        self.at -= 1


class Restless(WindowJoinOptimizer):
    """Forces other orders and groups on joins at random batches, however little there is to gain; and other partitions."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)
        self.prober = RestlessProber(seed)

    def partitions(self) -> int | None:
        """Return how many partitions there shall be from now on; None: as many as there are."""
        return self._random.randint(1, 4) if self._random.random() < 0.3 else None

    def choose_join_orders(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[int, JoinOrderVersion]:
        found: dict[int, JoinOrderVersion] = {}
        for number, query in live.items():
            if isinstance(query.plan, WindowJoinQuery) and is_reorderable(query.plan) and self._random.random() < 0.5:
                found[number] = JoinOrderVersion(self._random.choice(_orders(query.plan)), self._random.randrange(2))
        return found


def _orders(plan: WindowJoinQuery) -> list[tuple[int, ...]]:
    """Return the orders of a join that do not make far more rows: at most one more step of few has no equality."""
    known = tuple(iter_conditions(plan))
    most = count_cross_products(known, get_written_order(plan)) + (len(plan.inputs) < 4)
    return [order for order in permutations(range(len(plan.inputs))) if count_cross_products(known, order) <= most]


class RestlessProber(SlidingJoinOptimizer):
    """Forces other probe orders on multi-way joins at random batches."""

    def __init__(self, seed: int) -> None:
        super().__init__(background=False)
        self._random = Random(seed)

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        """Return any orders at all: by any stores, by way of joins that are kept, partitioned by anything."""
        if self._random.random() < 0.3:
            return super().choose_plan(state, probes)
        if self._random.random() < 0.5:
            return None
        kept: dict[JoinGraph, OrdersByRelation] = {}
        queries = {one.id: self._orders(one.join, kept) for one in probes.queries if self._random.random() < 0.7}
        return ProbeOrderChoice(queries, kept, self._loose(probes))

    def _loose(self, probes: SlidingJoinPlan) -> frozenset[str]:
        texts = sorted({one.text for query in probes.queries for one in query.predicates})
        return frozenset(text for text in texts if self._random.random() < 0.3)

    def _orders(self, join: JoinGraph, kept: dict[JoinGraph, OrdersByRelation]) -> OrdersByRelation:
        return {start: self._order(join, start, kept) for start in sorted(join.relations)}

    def _order(self, join: JoinGraph, start: str, kept: dict[JoinGraph, OrdersByRelation]) -> tuple[ProbeTarget, ...]:
        found: list[ProbeTarget] = []
        rest = sorted(join.relations - {start})
        while rest:
            size = self._random.choice((1, 1, 1, 2, 3)) if len(rest) > 1 else 1
            names = self._random.sample(rest, min(size, len(rest)))
            part = join.subgraph(names)
            if len(names) > 1 and part not in kept:
                kept[part] = {}
                kept[part] = self._orders(part, kept)
            sides = {
                s for one in join.predicates_between(names, join.relations - set(names)) for s in one.sides if s.relation in names
            }
            found.append(ProbeTarget(part, self._random.choice([None, *sorted(sides)])))
            rest = [name for name in rest if name not in names]
        return tuple(found)


@dataclass
class Run:
    """A session that goes on after every crash, as a new process would."""

    scenario: Scenario
    directory: Path
    options: dict[str, Any]
    fault: Fault = field(default_factory=Fault)
    wishes: list[AddQuery | RemoveQuery] = field(default_factory=list)
    restless: Restless | None = None

    def open(self) -> None:
        self.session = hr.Session(self.directory, fault=self.fault, **self.options)
        if self.restless is not None:
            self.session._coordinator.window_join_optimizer = self.restless
            self.session._coordinator.sliding_join_optimizer = self.restless.prober
        self.sources = {}
        for stream in self.scenario.streams:
            self.sources[stream.name] = hr.MemorySource(stream.schema)
            self.session.create_stream(stream.name, self.sources[stream.name], time=stream.time, watermark=f"{stream.delay} us")

    def play(self) -> None:
        self.open()
        for step in self.scenario.steps:
            if isinstance(step, AddQuery | RemoveQuery):
                self.wishes.append(step)
                self.ask(step)
            elif isinstance(step, Rows):
                self.sources[step.stream].append(list(step.rows))
            elif isinstance(step, Crash):
                self.fault.at = step.point
            elif isinstance(step, Advance):
                if self.restless is not None and (wanted := self.restless.partitions()) is not None:
                    self.session.rescale(wanted)
                self.surely(lambda: self.session.advance())
                self.fault.at = None
                self.wishes = []
            elif isinstance(step, Drain):
                self.surely(lambda: self.session.drain())

    def ask(self, step: AddQuery | RemoveQuery) -> None:
        if isinstance(step, AddQuery):
            self.session.add(step.sql, name=step.name)
        else:
            self.session.remove(step.name)

    def surely(self, action: Any) -> None:
        try:
            action()
        except Crashed:
            self.recover()
            action()

    def recover(self) -> None:
        """Let go of everything as a killed process would, open again, and repeat what was not logged yet."""
        self.session._coordinator.backend.close()
        self.session._checkpoint.close()
        self.open()
        for wish in self.wishes:
            there = self.session.find(wish.name)
            if isinstance(wish, AddQuery) and there is None:
                self.session.add(wish.sql, name=wish.name)
            elif isinstance(wish, RemoveQuery) and wish.name in {query.name for query in self.session.queries()}:
                self.session.remove(wish.name)

    def results(self, name: str) -> list[dict[str, Any]]:
        found = self.session.find(name)
        assert found is not None
        return found.results().to_pylist()

    def close(self) -> None:
        self.session.close()
