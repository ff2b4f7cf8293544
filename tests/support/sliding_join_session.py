"""A session over streams r … v on the local back-end, fed batch by batch, for tests of multi-way joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import headrace as hr
from headrace.engine.batch_job import ReduceReport, SegmentRef
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import JoinSharing, SlidingJoinOptimizer
from support.asking import COLUMNS, label

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Still(SlidingJoinOptimizer):
    """Leaves everything as it is, but for one choice that it is told to put into force."""

    def __init__(self, sharing: JoinSharing = JoinSharing.GLOBAL) -> None:
        super().__init__(background=False, sharing=sharing)
        self.told: ProbeOrderChoice | None = None

    def record_batch(self, outcomes: Sequence[ReduceReport]) -> None:
        pass

    def choose_plan(self, state: EngineState, probes: SlidingJoinPlan) -> ProbeOrderChoice | None:
        found, self.told = self.told, None
        return found


class Streams:
    """Streams and queries; rows are given by stream as dictionaries with `at`, their event time in seconds."""

    def __init__(self, directory: Path, names: str, prober: SlidingJoinOptimizer | None = None, **options: Any) -> None:
        self.directory = directory
        self.session = hr.Session(directory, **{"backend": "local", "partitions": 2, **options})
        self.prober = prober or Still(self.session._coordinator.sliding_join_optimizer.sharing)
        self.session._coordinator.sliding_join_optimizer = self.prober
        self.sources = {name: hr.MemorySource(COLUMNS) for name in names}
        for name, source in self.sources.items():
            self.session.create_stream(name, source, time="time")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def give(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        for name, found in rows.items():
            self.sources[name].append(
                [{**{k: v for k, v in row.items() if k != "at"}, "time": BEGIN + timedelta(seconds=row["at"])} for row in found]
            )

    def tick(self, rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> None:
        """Give rows and run a micro-batch."""
        self.give(rows or {})
        self.session.advance()

    @property
    def plan(self) -> SlidingJoinPlan:
        found = self.session._coordinator.sliding_join_plan
        assert found is not None
        return found

    @property
    def kept(self) -> tuple[SegmentRef, ...]:
        return self.session._coordinator.state.store_refs

    def rows_kept(self) -> dict[str, int]:
        """How many rows each store has, by its label."""
        named = {one.number: label(one) for one in self.plan.stores}
        found: Counter[str] = Counter()
        for ref in self.kept:
            found[named[ref.store]] += ref.row_count
        return dict(sorted(found.items()))

    def buckets(self) -> dict[str, int]:
        """In how many buckets a store is, by its label, in the partition in which it has most."""
        named = {one.number: label(one) for one in self.plan.stores}
        found: dict[str, int] = {}
        for (store, _), count in Counter((ref.store, ref.partition) for ref in self.kept).items():
            found[named[store]] = max(count, found.get(named[store], 0))
        return found

    def files(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.directory / folder).iterdir() if not path.name.startswith("."))

    def results(self, name: str) -> Counter[tuple[Any, ...]]:
        """The rows of a query so far, as often as they came."""
        found = self.session.find(name)
        assert found is not None
        return Counter(tuple(row.values()) for row in found.results().to_pylist())
