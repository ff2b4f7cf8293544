"""Epochs: new plans for the streams whose set of live queries changes at a batch boundary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.engine.batch_job import Epoch
from headrace.model.time import MIN_TIME
from headrace.model.window import HopWindow, last_window_start
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.join.window_join_plan import JoinOrderVersion, get_written_order
from headrace.planner.shared_plan import LiveQuery, StreamPlan, plan_stream
from headrace.planner.statistics import build_statistics
from headrace.runtime.engine_state import EngineState, StreamState

StreamPlanWriter = Callable[[str, StreamPlan], None]


def next_epoch_start(seen: int) -> int:
    """Return the start T of the next epoch: one microsecond after the greatest event time seen, or −∞ before the first row."""
    return MIN_TIME if seen == MIN_TIME else seen + 1


def replan_streams(state: EngineState, live: Mapping[int, LiveQuery], write: StreamPlanWriter) -> None:
    """Start a new epoch on every stream whose live queries changed; `write` stores a plan under its file name."""
    for stream in state.streams.values():
        readers = [q for q, query in live.items() if stream.stream.name in query.plan.streams]
        planned = tuple(live[q].signature for q in readers)
        if stream.epochs and planned == stream.planned:
            continue
        number, start = state.next_epoch, next_epoch_start(stream.seen)
        state.next_epoch += 1
        stream.plan = f"plans/{stream.number:04d}-{number:08d}.plan"
        write(
            stream.plan, plan_stream(stream.stream.name, [live[q] for q in readers], build_statistics(stream.rate, stream.keys))
        )
        kept = tuple(e for e in stream.epochs if e.start < start)  # an epoch without rows is replaced
        stream.epochs = (*kept, Epoch(number, start, stream.plan))
        stream.planned = planned


def retire_epochs(stream: StreamState, plans: Mapping[str, StreamPlan], watermarks: Mapping[int, int]) -> None:
    """Drop epochs without open windows; `watermarks` has the watermark of every live query, by id."""
    last = stream.epochs[-1]
    kept = []
    for epoch, following in zip(stream.epochs, stream.epochs[1:], strict=False):
        if _has_open_windows(plans[epoch.plan], following.start, watermarks):
            kept.append(epoch)
    stream.epochs = (*kept, last)


def _has_open_windows(plan: StreamPlan, end: int, watermarks: Mapping[int, int]) -> bool:
    for member in plan.subscribers:
        if member.query_id in watermarks and isinstance(member.window, HopWindow):
            closes = last_window_start(member.window, end - 1) + member.window.size
            if closes > watermarks[member.query_id]:
                return True
    return False


def update_join_orders(query: LiveQuery, new: JoinOrderVersion | None, seen: int, watermark: int) -> LiveQuery:
    """Return a window join with `new` as its join order for future windows, and without the versions it no longer needs.

    `seen` is the greatest event time in the join's streams: windows that start later use `new`. A version is dropped when all
    windows that start before the next version have closed.
    """
    plan = query.plan
    assert isinstance(plan, WindowJoinQuery)
    versions = list(query.order_versions)
    if new is not None:
        start = next_epoch_start(seen)
        kept = [version for version in versions or [JoinOrderVersion(get_written_order(plan))] if version.since < start]
        versions = [*kept, replace(new, since=start)] if kept else [replace(new, since=MIN_TIME)]
    while len(versions) > 1 and watermark >= versions[1].since + plan.longest_window:
        del versions[0]
    return replace(query, order_versions=tuple(versions))
