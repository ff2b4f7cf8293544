"""Plans of streams: made again by difference, stored as differences, and read back.

A `StreamPlanner` keeps what the planning of each stream has derived. It is only a memo: it has no influence on plans, and a new
one, as after a restart, makes equal plans. Which plans are stored as differences is in the state of the batch, so that the
manifest names every file that they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.engine.batch_job import Epoch
from headrace.planner.group_members import MemberTable
from headrace.planner.join.row_storage import RowStoragePlanner
from headrace.planner.plan_change import PlanChange, apply_changes, choose_base, describe_change, find_source
from headrace.planner.shared_plan import LiveQuery, PlanMemo, StreamPlan, Subscriber, plan_stream
from headrace.planner.statistics import build_statistics
from headrace.runtime.engine_state import EngineState, StreamState
from headrace.runtime.epochs import next_epoch_start
from headrace.storage import documents
from headrace.storage.store import Store, make_attempt_key


class StreamPlanner:
    """Plans streams whose live queries change, and stores the plans in a checkpoint."""

    def __init__(self, store: Store) -> None:
        """Take the store of the checkpoint."""
        self._store = store
        self._memos: dict[str, PlanMemo] = {}

    def replan_streams(self, state: EngineState, live: Mapping[int, LiveQuery], storage: RowStoragePlanner) -> None:
        """Start a new epoch on every stream whose live queries, or whose best row storage, changed."""
        readers: dict[str, list[LiveQuery]] = {name: [] for name in state.streams}
        for query in live.values():
            for name in query.plan.streams:
                if name in readers:
                    readers[name].append(query)
        for stream in state.streams.values():
            queries = readers[stream.stream.name]
            planned = (*(query.signature for query in queries), *storage.list_signatures())
            is_unchanged, current = bool(stream.epochs) and planned == stream.planned, state.plans.get(stream.plan)
            if is_unchanged and (current is None or not storage.is_open(current, state.batch)):
                continue
            plan = storage.plan_storage(self._plan_stream(stream, queries), queries, current)
            if is_unchanged and current is not None and plan.join_buffers == current.join_buffers:
                continue
            self._start_epoch(state, stream, plan)
            stream.planned = planned
        self._memos = {name: memo for name, memo in self._memos.items() if name in state.streams}

    def _plan_stream(self, stream: StreamState, queries: Iterable[LiveQuery]) -> StreamPlan:
        memo = self._memos.setdefault(stream.stream.name, PlanMemo())
        return plan_stream(stream.stream.name, queries, build_statistics(stream.rate, stream.keys), memo)

    def _start_epoch(self, state: EngineState, stream: StreamState, plan: StreamPlan) -> None:
        number, start = state.next_epoch, next_epoch_start(stream.seen)
        state.next_epoch += 1
        stream.plan = self._store_plan(state, f"{stream.number:04d}-{number:08d}", stream.plan, plan)
        kept = tuple(e for e in stream.epochs if e.start < start)  # an epoch without rows is replaced
        stream.epochs = (*kept, Epoch(number, start, stream.plan))

    def _store_plan(self, state: EngineState, name: str, before: str, plan: StreamPlan) -> str:
        """Store a plan, if possible as the difference to the one in the file `before`; return its file."""
        file = make_attempt_key("plans", name, ".plan")
        state.plans[file] = plan
        earlier = state.plans.get(before)
        if earlier is not None:
            change = describe_change(earlier, plan)
            base = choose_base(
                before, change, plan, state.plan_bases.get(before), lambda: make_attempt_key("plans", f"{name}-full", ".plan")
            )
            if base is not None:
                documents.put_record(self._store, file, change)
                if base.full_file:
                    documents.put_record(self._store, base.full_file, plan)
                state.plan_bases = {**state.plan_bases, file: base}
                return file
        documents.put_record(self._store, file, plan)
        return file


def read_plans(store: Store, state: EngineState) -> dict[str, StreamPlan]:
    """Return the plans that the state refers to, by file; raises CheckpointError if a file is missing or damaged."""
    plans: dict[str, StreamPlan] = {}
    for file in sorted(state.plan_files()):
        source, changes = find_source(file, state.plan_bases, plans.__contains__)
        plan: StreamPlan = plans[source] if source in plans else documents.get_record(store, source)
        if changes:
            table: MemberTable[Subscriber] = MemberTable()
            read: list[PlanChange] = [documents.get_record(store, change) for change in changes]
            plan = apply_changes(plan, read, table).plan
        plans[file] = plan
    return plans
