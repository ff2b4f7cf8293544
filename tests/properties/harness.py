"""Runs a scenario on a session, with crashes and replanning, to compare its results with the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import headrace as hr
from headrace.backends.local import LocalBackend
from headrace.model.late_materialization import LateMaterialization
from headrace.model.partition_map import PartitionMap
from headrace.model.sliding_join_options import SlidingJoinOptions
from headrace.model.window_join_options import WindowJoinOptions
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
from headrace.runtime.partition_scaling import PartitionChange, PartitionScaler, ScalingPolicy
from headrace.runtime.replanning import SlidingJoinOptimizer, WindowJoinOptimizer
from headrace.storage.fault_points import install_fault_hook
from support.strategies import AddQuery, Advance, Crash, Drain, RemoveQuery, Rows, Scenario


class Crashed(BaseException):
    """Raised by a fault; no code of the engine may catch it."""


@dataclass
class Fault:
    """A fault hook of a session: counts durable steps and raises at the step `at`."""

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


class RandomReplanner(WindowJoinOptimizer):
    """Changes join orders, groups and the partition map at random batches, whatever the gain."""

    def __init__(self, seed: int, sliding_joins: SlidingJoinOptions = SlidingJoinOptions()) -> None:  # noqa: B008  a frozen value
        super().__init__(WindowJoinOptions(order_gain=0.0, group_gain=0.0, interval=1, full_above=0.2, drift=1.01))
        self._random = Random(seed)
        self.sliding_join_optimizer = RandomProbeOrders(seed, sliding_joins)

    def draw_partitions(self, current: PartitionMap) -> PartitionMap:
        """Return equal ranges, the current ones with random splits or merges, or the current ones."""
        draw, ranges = self._random.random(), current.list_ranges()
        if draw < 0.2:
            return PartitionMap(self._random.randint(1, 4))
        if draw < 0.4 and current.count < 6:
            chosen = self._random.sample(ranges, self._random.randint(1, min(2, current.count)))
            return current.split(
                {
                    item.partition: self._random.randint(item.start + 1, item.end - 1)
                    for item in chosen
                    if item.end - item.start > 1
                }
            )
        if draw < 0.6 and current.count > 1:
            index = self._random.randrange(current.count - 1)
            return current.merge([(ranges[index].partition, ranges[index + 1].partition)])
        return current

    def draw_late_materialization(self) -> LateMaterialization:
        """Return how the next micro-batch stores the rows of joins."""
        return self._random.choice(list(LateMaterialization))

    def choose_join_orders(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[int, JoinOrderVersion]:
        if self._random.random() < 0.2:  # what the optimizer chooses, from few rows
            return super().choose_join_orders(state, live)
        versions: dict[int, JoinOrderVersion] = {}
        for number, query in live.items():
            if isinstance(query.plan, WindowJoinQuery) and self._random.random() < 0.5:
                order = self._random.choice(_list_orders(query.plan))
                later = tuple(self._random.randrange(2) for _ in order[2:]) if self._random.random() < 0.5 else ()
                versions[number] = JoinOrderVersion(order, self._random.randrange(2), later_groups=later)
        return versions


class RandomPartitionMaps(PartitionScaler):
    """Changes the partition map at random batches."""

    def __init__(self, replanner: RandomReplanner) -> None:
        super().__init__("auto")
        self._replanner = replanner

    def plan(self, partitions: PartitionMap, parallelism: int, now: float) -> PartitionChange:
        return PartitionChange(self._replanner.draw_partitions(partitions), "at random")


class RandomLoad:
    """Gives a session with `partitions="auto"` a reason for another number of partitions at random batches.

    The parallelism of a local back-end changes, and one batch with work suffices to split or merge ranges.
    """

    _GROW = ScalingPolicy(steady_batches=1, cooldown_seconds=0.0, target_seconds=0.0)
    _SHRINK = ScalingPolicy(steady_batches=1, cooldown_seconds=0.0, target_seconds=1e9, relevant_seconds=1e9)

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def apply(self, session: hr.Session) -> None:
        if self._random.random() < 0.1 and isinstance(session._backend, LocalBackend):
            session._backend.parallelism = self._random.randint(1, 3)
        session._coordinator.scaler.policy = self._random.choice((self._GROW, self._GROW, self._SHRINK))


def _list_orders(plan: WindowJoinQuery) -> list[tuple[int, ...]]:
    """Return the orders of a join without many more cross products than the written one: one more for up to three inputs."""
    if not is_reorderable(plan):
        return [get_written_order(plan)]
    conditions = tuple(iter_conditions(plan))
    limit = count_cross_products(conditions, get_written_order(plan)) + (len(plan.inputs) < 4)
    return [order for order in permutations(range(len(plan.inputs))) if count_cross_products(conditions, order) <= limit]


class RandomProbeOrders(SlidingJoinOptimizer):
    """Changes the probe orders of sliding joins at random batches."""

    def __init__(self, seed: int, options: SlidingJoinOptions = SlidingJoinOptions()) -> None:  # noqa: B008  a frozen value
        super().__init__(interval=2, background=False, options=options)
        self._random = Random(seed)

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        """Return random probe orders, with random intermediate results and partitionings."""
        if self._random.random() < 0.3:
            return super().choose_plan(state, probes)
        if self._random.random() < 0.5:
            return None
        materialized: dict[JoinGraph, OrdersByRelation] = {}
        orders = {q.id: self._draw_orders(q.join_graph, materialized) for q in probes.queries if self._random.random() < 0.7}
        return ProbeOrderChoice(orders, materialized, self._draw_residuals(probes))

    def _draw_residuals(self, probes: SlidingJoinPlan) -> frozenset[str]:
        texts = sorted({predicate.text for query in probes.queries for predicate in query.predicates})
        return frozenset(text for text in texts if self._random.random() < 0.3)

    def _draw_orders(self, join: JoinGraph, materialized: dict[JoinGraph, OrdersByRelation]) -> OrdersByRelation:
        return {start: self._draw_order(join, start, materialized) for start in sorted(join.relations)}

    def _draw_order(
        self, join: JoinGraph, start: str, materialized: dict[JoinGraph, OrdersByRelation]
    ) -> tuple[ProbeTarget, ...]:
        targets: list[ProbeTarget] = []
        rest = sorted(join.relations - {start})
        while rest:
            size = self._random.choice((1, 1, 1, 2, 3)) if len(rest) > 1 else 1
            names = self._random.sample(rest, min(size, len(rest)))
            part = join.subgraph(names)
            if len(names) > 1 and part not in materialized:
                materialized[part] = {}
                materialized[part] = self._draw_orders(part, materialized)
            attributes = {
                side
                for predicate in join.predicates_between(names, join.relations - set(names))
                for side in predicate.sides
                if side.relation in names
            }
            targets.append(ProbeTarget(part, self._random.choice([None, *sorted(attributes)])))
            rest = [name for name in rest if name not in names]
        return tuple(targets)


@dataclass
class Run:
    """A run of a scenario; after every crash it recovers as a new process would."""

    scenario: Scenario
    directory: Path | str
    options: dict[str, Any]
    fault: Fault = field(default_factory=Fault)
    unlogged: list[AddQuery | RemoveQuery] = field(default_factory=list)
    replanner: RandomReplanner | None = None
    load: RandomLoad | None = None

    def open(self) -> None:
        install_fault_hook(self.directory, self.fault)
        self.session = hr.Session(self.directory, **self.options)
        if self.replanner is not None:
            self.session._coordinator.optimizers.window_joins = self.replanner
            self.session._coordinator.optimizers.sliding_joins = self.replanner.sliding_join_optimizer
            self.session._coordinator.scaler = RandomPartitionMaps(self.replanner)
        self.sources = {}
        for stream in self.scenario.streams:
            self.sources[stream.name] = hr.MemorySource(stream.schema)
            self.session.create_stream(stream.name, self.sources[stream.name], time=stream.time, watermark=f"{stream.delay} us")

    def play(self) -> None:
        self.open()
        for step in self.scenario.steps:
            if isinstance(step, AddQuery | RemoveQuery):
                self.unlogged.append(step)
                self.apply(step)
            elif isinstance(step, Rows):
                self.sources[step.stream].append(list(step.rows))
            elif isinstance(step, Crash):
                self.fault.at = step.point
            elif isinstance(step, Advance):
                if self.replanner is not None:
                    self.session._coordinator.late_materialization = self.replanner.draw_late_materialization()
                if self.load is not None:
                    self.load.apply(self.session)
                self.retry_after_crash(lambda: self.session.advance())
                self.fault.at = None
                self.unlogged = []
            elif isinstance(step, Drain):
                self.retry_after_crash(lambda: self.session.drain())

    def apply(self, step: AddQuery | RemoveQuery) -> None:
        if isinstance(step, AddQuery):
            self.session.add(step.sql, name=step.name)
        else:
            self.session.remove(step.name)

    def retry_after_crash(self, action: Any) -> None:
        try:
            action()
        except Crashed:
            self.recover()
            action()

    def recover(self) -> None:
        """Release everything as a killed process would, open the checkpoint again, and repeat changes that were not logged."""
        self.session._coordinator.backend.close()
        self.session._checkpoint.close()
        self.open()
        for change in self.unlogged:
            if isinstance(change, AddQuery) and self.session.find(change.name) is None:
                self.session.add(change.sql, name=change.name)
            elif isinstance(change, RemoveQuery) and change.name in {query.name for query in self.session.queries()}:
                self.session.remove(change.name)

    def results(self, name: str) -> list[dict[str, Any]]:
        query = self.session.find(name)
        assert query is not None
        return query.results().to_pylist()

    def close(self) -> None:
        self.session.close()
