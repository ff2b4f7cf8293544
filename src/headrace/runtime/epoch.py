"""Epochs: what changes of the live queries do to the plans of their streams, at a batch boundary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.execution.job import Epoch
from headrace.model.window import Sliding, last_start
from headrace.plan.join import JoinQuery
from headrace.runtime.state import EngineState, StreamState
from headrace.sharing.arrangement import Arrangement, written
from headrace.sharing.shared_plan import LiveQuery, StreamPlan, plan_stream
from headrace.sharing.slicing import NEVER
from headrace.sharing.statistics import measured

Write = Callable[[str, StreamPlan], None]


def start_of(seen: int) -> int:
    """Return T: one microsecond after the greatest event time seen, or −∞."""
    return NEVER if seen == NEVER else seen + 1


def replan(state: EngineState, live: Mapping[int, LiveQuery], write: Write) -> None:
    """Begin a new epoch on every stream whose set of live queries changed; `write` stores a plan under a name."""
    for stream in state.streams.values():
        mine = [q for q, query in live.items() if stream.stream.name in query.plan.streams]
        planned = tuple(live[q].signature for q in mine)
        if stream.epochs and planned == stream.planned:
            continue
        number, start = state.next_epoch, start_of(stream.seen)
        state.next_epoch += 1
        stream.plan = f"plans/{stream.number:04d}-{number:08d}.plan"
        write(stream.plan, plan_stream(stream.stream.name, [live[q] for q in mine], measured(stream.rate, stream.keys)))
        kept = tuple(e for e in stream.epochs if e.start < start)  # an epoch that saw no row is replaced
        stream.epochs = (*kept, Epoch(number, start, stream.plan))
        stream.planned = planned


def retire(stream: StreamState, plans: Mapping[str, StreamPlan], watermarks: Mapping[int, int]) -> None:
    """Forget epochs none of whose windows can still be open for a live query (`watermarks` has all live ones)."""
    last = stream.epochs[-1]
    kept = []
    for epoch, following in zip(stream.epochs, stream.epochs[1:], strict=False):
        if _open(plans[epoch.plan], following.start, watermarks):
            kept.append(epoch)
    stream.epochs = (*kept, last)


def _open(plan: StreamPlan, end: int, watermarks: Mapping[int, int]) -> bool:
    for member in plan.members:
        if member.query in watermarks and isinstance(member.window, Sliding):
            closes = last_start(member.window, end - 1) + member.window.size
            if closes > watermarks[member.query]:
                return True
    return False


def rearrange(query: LiveQuery, new: Arrangement | None, seen: int, watermark: int) -> LiveQuery:
    """Return a join under a new arrangement, for windows that are still to begin, without those it no longer needs.

    `seen` is the greatest event time in its streams: windows that start later are joined as `new` says. An arrangement goes
    when all windows before the next one have closed.
    """
    plan = query.plan
    assert isinstance(plan, JoinQuery)
    found = list(query.arrangements)
    if new is not None:
        start = start_of(seen)
        kept = [one for one in found or [Arrangement(written(plan))] if one.since < start]
        found = [*kept, replace(new, since=start)] if kept else [replace(new, since=NEVER)]
    while len(found) > 1 and watermark >= found[1].since + plan.size:
        del found[0]
    return replace(query, arrangements=tuple(found))
