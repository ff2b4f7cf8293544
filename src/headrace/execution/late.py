"""Late rows, counted for each query: rows it wants, all of whose windows have closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from headrace.execution.batch import Batch
from headrace.execution.query_sets import QuerySets
from headrace.execution.selection import Tagged
from headrace.model.window import SessionGap, Sliding
from headrace.sharing.shared_plan import Buckets, Member, Store


def count_late(store: Store, tagged: Tagged, batch: Batch, watermarks: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield (query, late rows) for members that have any, over rows behind the stream's watermark."""
    times = batch.times if tagged.rows is None else batch.times[tagged.rows]
    closed: dict[tuple[Sliding, int, int], npt.NDArray[np.bool_]] = {}
    holds = np.zeros(tagged.size, np.bool_)
    for member, predicate in zip(store.members, store.predicate_of, strict=True):
        assert isinstance(member.window, Sliding)
        at = (member.window, member.since, watermarks[member.query])
        if at not in closed:
            closed[at] = _closed(times, *at)
        holds[:] = False
        for low, high in tagged.spans.of(predicate):
            holds[low:high] = True
        late = int((closed[at] & holds[tagged.cells]).sum())
        if late:
            yield member.query, late


def counted(member: Member, times: npt.NDArray[np.int64], watermark: int) -> npt.NDArray[np.bool_]:
    """Tell which times count for a member: not before it was added, and in a window that is still open."""
    window = member.window
    if isinstance(window, Sliding):
        starts = times // window.slide * window.slide
        return (starts >= member.since) & (times < starts + window.size) & (starts + window.size > watermark)
    open_still = times + window.gap > watermark if isinstance(window, SessionGap) else True
    return (times >= member.since) & open_still


def _closed(times: npt.NDArray[np.int64], window: Sliding, since: int, watermark: int) -> npt.NDArray[np.bool_]:
    """Tell which times lie in a window (starting at `since` or later), the last of which has closed."""
    starts = times // window.slide * window.slide
    return (starts >= since) & (times < starts + window.size) & (starts + window.size <= watermark)


def count_late_in_joins(
    operator: Buckets, sets: QuerySets, batch: Batch, watermarks: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield (query, late rows) for members that have any, over rows behind the stream's watermark."""
    found = sets.of(batch)
    for member, bit in zip(operator.members, operator.bits, strict=True):
        if member.again:
            continue
        assert isinstance(member.window, Sliding)
        assert member.ends is not None
        offset, step = member.ends.offset, member.ends.step
        last = (batch.times + member.window.size - offset) // step * step + offset
        inside = (last > batch.times) & (last - member.longest >= member.since)
        wanted = (found[:, bit // 64] >> np.uint64(bit % 64) & np.uint64(1)).astype(np.bool_)
        late = int((wanted & inside & (last <= watermarks[member.query])).sum())
        if late:
            yield member.query, late
