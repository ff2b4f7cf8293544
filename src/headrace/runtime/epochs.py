"""Epochs: what changes at a batch boundary. Queries come and go, and the streams whose live queries change get new plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.connectors import query_sink_from_json, sink_set_from_json
from headrace.errors import CheckpointError, HeadraceError
from headrace.model.time import MIN_TIME
from headrace.model.window import HopWindow, last_window_start
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.changelog import (
    Changelog,
    QueryAddition,
    apply_changelog,
    compact_bits,
    list_derived_streams,
    root_query_id,
    split_query,
)
from headrace.planner.join.window_join_plan import JoinOrderVersion, get_written_order
from headrace.planner.shared_plan import LiveQuery, StreamPlan
from headrace.runtime import sliding_join_epochs
from headrace.runtime.commands import AddQuery, AddSink, Command, DropStream, RemoveQuery, RemoveSink
from headrace.runtime.engine_state import EngineState, QueryState, StreamState
from headrace.sql import bind_query


def next_epoch_start(seen: int) -> int:
    """Return the start T of the next epoch: one microsecond after the greatest event time seen, or −∞ before the first row."""
    return MIN_TIME if seen == MIN_TIME else seen + 1


def apply_commands(
    state: EngineState, before: Mapping[int, LiveQuery], commands: Sequence[Command], *, is_shared: bool = True
) -> dict[int, LiveQuery]:
    """Record added and removed queries and dropped streams in the state of the batch; return the live queries of the batch.

    A query that cannot be bound fails alone: an earlier version accepted it, or there was more stack left.
    """
    additions: list[tuple[QueryAddition, AddQuery]] = []
    removed = {command.id for command in commands if isinstance(command, RemoveQuery)}
    for add in (command for command in commands if isinstance(command, AddQuery)):
        ended = QueryState(add.id, add.name, add.sql, add.sink, first_batch=state.batch, owner=add.owner, last_batch=state.batch)
        ended.budget = add.budget
        if add.id in removed:  # not bound: that may be what failed
            state.queries[add.id] = ended
            continue
        try:
            additions += [(part, add) for part in _bind_parts(state, add)]
        except (HeadraceError, RecursionError) as error:
            ended.error = str(error)
            state.queries[add.id] = ended
    removed_parts = {number for number in before if root_query_id(number) in removed}
    changelog = Changelog(tuple(part for part, _ in additions), frozenset(removed_parts))
    live = {query.id: query for query in _apply_changelog(state, before, changelog)}
    for part, add in additions:
        live_query = live[part.id]
        note = ""
        if add.past and not is_shared:
            note = "not backfilled: queries do not share state stores (sliding_sharing=False)"
        elif add.past:
            live_query, note = sliding_join_epochs.add_backfill(live_query, before, state)
            live[part.id] = live_query
        state.queries[part.id] = _record_addition(state.batch, part, add, live_query)
        state.queries[part.id].note = note
    for command in commands:
        if isinstance(command, RemoveQuery) and command.id in state.queries:
            ended, plan = state.queries[command.id], before.get(command.id)
            ended.live, ended.last_batch, ended.error = False, state.batch, command.error
            ended.schema = ended.schema if plan is None else plan.plan.schema
        elif isinstance(command, AddSink | RemoveSink):
            _change_sinks(state, command)
        elif isinstance(command, DropStream):
            state.drop_stream(command.name)
    state.drop_ended_parts(live, list_derived_streams(live.values()))
    return live


def _apply_changelog(state: EngineState, before: Mapping[int, LiveQuery], changelog: Changelog) -> Sequence[LiveQuery]:
    """Return the live queries after a changelog, with their bits compacted if that pays; record moved bits in the state."""
    live = apply_changelog(list(before.values()), changelog)
    if not changelog:
        return live
    oldest_version = min((ref.newest_batch for ref in state.store_refs), default=state.batch)
    live = tuple(_forget_former_bits(query, oldest_version) for query in compact_bits(live, state.batch))
    for query in live:
        if query.id in before:
            known = state.queries[query.id]
            known.bit, known.former_bits = query.bit, query.former_bits
    return live


def _forget_former_bits(query: LiveQuery, oldest_version: int) -> LiveQuery:
    """Return a query without the former bits that no stored query-set has: the oldest was defined by `oldest_version`."""
    if not query.former_bits or query.former_bits[0].until_batch > oldest_version:
        return query
    return replace(query, former_bits=tuple(bit for bit in query.former_bits if bit.until_batch > oldest_version))


def _change_sinks(state: EngineState, command: AddSink | RemoveSink) -> None:
    """Change the sinks of a query from this batch on; a query that is not live any more has no further rows."""
    query = state.queries.get(command.id)
    if query is None or not query.live:
        return
    sinks = sink_set_from_json(query.sink)
    if isinstance(command, RemoveSink):
        sinks = sinks.end(command.number, state.batch)
    elif command.number >= sinks.next_number:
        sinks = replace(sinks, next_number=command.number).add(query_sink_from_json(command.sink), state.batch)
    query.sink = sinks.to_json()


def _record_addition(batch: int, part: QueryAddition, add: AddQuery, live: LiveQuery) -> QueryState:
    """Return the state of a new query or query part."""
    added = QueryState(part.id, part.name, add.sql, add.sink, first_batch=batch, owner=add.owner)
    added.since, added.bit, added.live, added.backfills = live.since, live.bit, True, live.backfills
    added.budget = add.budget
    return added


def _bind_parts(state: EngineState, request: AddQuery) -> list[QueryAddition]:
    """Bind a query and return its parts; add the derived streams of its inner results to the state."""
    query = bind_query(request.sql, state.build_catalog())
    since = next_epoch_start(max(state.streams[name].seen for name in query.streams))
    parts = split_query(request.id, request.name, query, since)
    for unnested in parts[-1].addition.unnested:
        if unnested.name not in state.streams:
            bases = tuple(dict.fromkeys(name for base in unnested.bases for name in state.streams[base].base or (base,)))
            state.streams[unnested.name] = StreamState(unnested.stream, state.next_stream_number(), {}, base=bases)
    for part in parts:
        derived = part.result_stream
        if derived is not None and derived.name not in state.streams:
            bases = tuple(
                dict.fromkeys(name for stream in part.addition.plan.streams for name in state.streams[stream].base or (stream,))
            )
            state.streams[derived.name] = StreamState(derived, state.next_stream_number(), {}, base=bases)
    return [part.addition for part in parts]


def recover_query(state: EngineState, query: QueryState) -> LiveQuery:
    """Bind the text of a recovered query again; return the live query, or the query part, that has the recorded id.

    Raises CheckpointError if this version of headrace gives the query another plan.
    """
    bound = bind_query(query.sql, state.build_catalog())
    parts = split_query(root_query_id(query.id), query.name, bound, query.since)
    part = next((part.addition for part in parts if part.addition.id == query.id), None)
    if part is None or any(name not in state.streams for name in part.plan.streams):
        raise CheckpointError(
            f"query '{query.name}' has another plan in this version of headrace than in the one that wrote the checkpoint",
            hint="continue with that version, or start with a new checkpoint and read the input again",
        )
    return LiveQuery(
        query.id,
        query.name,
        part.plan,
        query.since,
        query.bit,
        query.join_order_versions,
        part.output_stream,
        query.backfills,
        part.unnested,
        query.former_bits,
    )


def update_join_orders(state: EngineState, live: dict[int, LiveQuery], chosen: Mapping[int, JoinOrderVersion]) -> None:
    """Apply the chosen join orders to live window joins, and drop join-order versions that no open window needs."""
    for number, query in live.items():
        new = chosen.get(number)
        if new is None and len(query.order_versions) < 2:
            continue
        seen = max(state.streams[name].seen for name in query.plan.streams)
        versions = derive_join_orders(query, new, seen, state.watermark_of(query.plan.streams))
        live[number] = replace(query, order_versions=versions)
        state.queries[number].join_order_versions = versions


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


def derive_join_orders(query: LiveQuery, new: JoinOrderVersion | None, seen: int, watermark: int) -> tuple[JoinOrderVersion, ...]:
    """Return the join orders of a window join with `new` for future windows, and without the versions it no longer needs.

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
    return tuple(versions)
