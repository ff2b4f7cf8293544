"""Planning of a micro-batch: its input ranges, their division into tasks, and new join orders, as an entry of the batch log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.connectors import Position, Range
from headrace.errors import log_internal_error
from headrace.model.partition_map import PartitionMap
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime import sliding_join_epochs
from headrace.runtime.attached_sources import AttachedSources
from headrace.runtime.batch_log import BatchLogEntry, DeclaredStream
from headrace.runtime.commands import Command, DropStream
from headrace.runtime.engine_state import EngineState
from headrace.runtime.replanning import JoinOptimizers

_WAITING_TASK_ROWS = 100_000  # of a task that may wait for an executor: its rows take some ten times as long as its start


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What a session asks of its next batch; `final` closes every window, and `excluded` streams are not read."""

    rows_per_batch: int
    parallelism: int
    partition_map: PartitionMap
    final: bool
    excluded: frozenset[str] = frozenset()
    clock: int = 0  # microseconds since 1970
    rescale_reason: str = ""
    max_tasks: int = 0  # of a large batch; fewer than `parallelism` count as that


def choose_task_count(ranges: Sequence[Range], parallelism: int, max_tasks: int) -> int:
    """Return the number of map tasks: as many as run at a time, and more, up to `max_tasks`, if each has enough rows."""
    return max(parallelism, min(max_tasks, sum(item.rows for item in ranges) // _WAITING_TASK_ROWS))


def split_into_tasks(ranges: Sequence[Range], parallelism: int) -> list[list[Range]]:
    """Divide ranges into at most `parallelism` tasks with about equal row counts; adjacent ranges stay together."""
    total = sum(item.rows for item in ranges)
    tasks: list[list[Range]] = []
    assigned = 0
    for item in ranges:
        if not tasks or (len(tasks) < parallelism and assigned * parallelism >= total * len(tasks)):
            tasks.append([])
        tasks[-1].append(item)
        assigned += item.rows
    return tasks


def plan_input(state: EngineState, sources: AttachedSources, settings: BatchSettings) -> tuple[list[Range], dict[str, Position]]:
    """Return the ranges of new rows of all streams that can be read, and the positions after them."""
    ranges: list[Range] = []
    positions: dict[str, Position] = {}
    for name in sources:
        if name in settings.excluded:
            continue
        planned = sources.plan(name, state.streams[name].position, settings.rows_per_batch)
        if planned is not None:
            ranges += planned[0]
            positions[name] = planned[1]
    return ranges, positions


def decide_idle_partitions(
    state: EngineState, sources: AttachedSources, ranges: Sequence[Range], positions: Mapping[str, Position], clock: int
) -> dict[str, dict[int, bool]]:
    """Return whether each partition is idle, for the streams that are read and whose watermark is by partition."""
    with_rows: dict[str, set[int]] = defaultdict(set)
    for item in ranges:
        with_rows[item.stream].add(item.partition)
    decisions = {}
    for name in sources:
        stream = state.streams[name].stream
        if name not in positions:
            sources.idle_partitions.forget(name)
        elif stream.watermark_by == "partition":
            partitions = sources.list_partitions(name, positions[name])
            decisions[name] = sources.idle_partitions.decide(stream, partitions, with_rows[name], clock)
    return decisions


def _list_dropped(commands: Sequence[Command]) -> set[str]:
    return {command.name for command in commands if isinstance(command, DropStream)}


def plan_batch(
    state: EngineState,
    live: Mapping[int, LiveQuery],
    sliding_join_plan: SlidingJoinPlan | None,
    sources: AttachedSources,
    optimizers: JoinOptimizers,
    settings: BatchSettings,
    commands: Sequence[Command],
) -> BatchLogEntry:
    """Return the log entry of the next batch: all new rows up to the limit, the commands, and cheaper join orders if any.

    A stream whose source fails is left out: its position stays, and the others are read.
    """
    ranges, positions = plan_input(state, sources, settings)
    probe_choice, join_orders = _choose_join_plans(state, live, sliding_join_plan, optimizers)
    return BatchLogEntry(
        batch=state.batch + 1,
        partition_map=settings.partition_map,
        streams={name: DeclaredStream(s.stream, s.source) for name, s in state.declared_streams().items()},
        udfs=state.udfs,
        positions=positions,
        tasks=tuple(map(tuple, split_into_tasks(ranges, choose_task_count(ranges, settings.parallelism, settings.max_tasks)))),
        commands=tuple(commands),
        join_orders=join_orders,
        probe_orders=None if probe_choice is None else sliding_join_epochs.choice_to_json(probe_choice),
        sharing="global" if optimizers.sliding_joins.options.is_shared else "none",
        final=settings.final,
        clock=settings.clock,
        source_partitions=decide_idle_partitions(state, sources, ranges, positions, settings.clock),
        rescale_reason=settings.rescale_reason,
        left_open=frozenset(sources) - positions.keys() - _list_dropped(commands) if settings.final else frozenset(),
    )


def _choose_join_plans(
    state: EngineState, live: Mapping[int, LiveQuery], sliding_join_plan: SlidingJoinPlan | None, optimizers: JoinOptimizers
) -> tuple[ProbeOrderChoice | None, dict[int, JoinOrderVersion]]:
    """Return new probe orders and join orders; none if an optimizer fails, because the current ones are as correct."""
    try:
        probe_choice = None if sliding_join_plan is None else optimizers.sliding_joins.choose_plan(state, sliding_join_plan)
        return probe_choice, optimizers.window_joins.choose_join_orders(state, live)
    except Exception as problem:  # noqa: BLE001  a bug of an optimizer must not stop the queries
        log_internal_error("no join orders were chosen", problem)
        return None, {}
