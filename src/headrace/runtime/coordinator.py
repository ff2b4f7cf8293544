"""The coordinator: logs, runs and commits one micro-batch after the other.

It plans and commits; it never touches rows. Every decision about a batch, including the division of its input into tasks, is in
the log before the batch runs, so an interrupted batch is run again exactly as planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

from headrace.connectors import Range, Source
from headrace.engine.batch_job import BatchJob, MapReport, ReduceReport, StreamJob, query_file_name
from headrace.errors import CheckpointError, HeadraceError, NameTakenError, SessionError, SourceError
from headrace.model.stream import Stream
from headrace.model.time import MIN_TIME
from headrace.planner.changelog import (
    Changelog,
    QueryAddition,
    apply_changelog,
    collect_unnested_streams,
    compute_query_level,
    compute_stream_depths,
    list_derived_streams,
    root_query_id,
    split_query,
)
from headrace.planner.join.sliding_join_plan import SlidingJoinPlan
from headrace.planner.join.window_join_order import JoinStatistics
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.planner.shared_plan import LiveQuery, StreamPlan
from headrace.planner.statistics import merge_key_counts, update_rate
from headrace.runtime import commands, epochs, sliding_join_epochs
from headrace.runtime.attached_sources import AttachedSources
from headrace.runtime.backend import Backend
from headrace.runtime.binding import bind_query
from headrace.runtime.commands import AddQuery, Command, CommandQueue, RemoveQuery
from headrace.runtime.engine_state import EngineState, QueryState, StreamState, UdfSet, stream_from_json, stream_to_json
from headrace.runtime.metrics import BatchReport, EventTimeMarks, describe_plan_changes
from headrace.runtime.replanning import SlidingJoinOptimizer, WindowJoinOptimizer, parse_sharing
from headrace.sql import Catalog
from headrace.storage import container
from headrace.storage.checkpoint import Checkpoint


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


_MAX_PARTITIONS = 10_000
_ENDED_QUERIES_KEPT = 1_000  # ended queries that the manifest retains


class Coordinator:
    """Holds the state after the last committed batch. Callers serialize calls of `advance`."""

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, partitions: int | None, rows_per_batch: int, multiway: str = "global"
    ) -> None:
        """Recover the state of the checkpoint; the first `advance` runs a batch that was logged but not committed.

        `partitions` defaults to the number in the checkpoint, or to the back-end's parallelism in a new checkpoint.
        """
        self.checkpoint, self.backend, self.rows_per_batch = checkpoint, backend, rows_per_batch
        self.state = EngineState(partitions=backend.parallelism if partitions is None else partitions)
        self.command_queue = CommandQueue()
        self.sources = AttachedSources(checkpoint)
        self.live_queries: dict[int, LiveQuery] = {}
        self.window_join_optimizer, self.sliding_join_optimizer = (
            WindowJoinOptimizer(),
            SlidingJoinOptimizer(sharing=parse_sharing(multiway)),
        )
        self.sliding_join_plan: SlidingJoinPlan | None = None
        self._recover()
        self.rescale(self.state.partitions if partitions is None else partitions)

    def _recover(self) -> None:
        newest = self.checkpoint.read_last_manifest()
        if newest is not None:
            self.state = EngineState.from_json(newest[1])
            self.state.plans = {name: container.read(self.checkpoint.path / name) for name in self.state.plan_files()}
            self.sliding_join_plan = (
                container.read(self.checkpoint.path / self.state.sliding_join_plan_file)
                if self.state.sliding_join_plan_file
                else None
            )
        self.unfinished_entry = self.checkpoint.read_log_entry(self.state.batch + 1)
        if self.unfinished_entry is not None:
            self.state.udfs = UdfSet.from_json(self.unfinished_entry.get("functions", {}))
        for query in self.state.live_queries():
            versions = tuple(JoinOrderVersion(tuple(order), group, since) for order, group, since in query.join_order_versions)
            part = self._rebind_query(query)
            recovered = LiveQuery(query.id, query.name, part.plan, query.since, query.bit, versions, part.output_stream)
            self.live_queries[query.id] = replace(
                recovered, backfills=sliding_join_epochs.read_backfills(query), unnested=part.unnested
            )
            self._write_query(query)
        sliding_join_epochs.check_sharing_mode(self.sliding_join_plan, self.live_queries, self.sliding_join_optimizer.sharing)

    def build_catalog(self) -> Catalog:
        """Return the declared streams and registered functions."""
        return self.state.build_catalog()

    def _rebind_query(self, query: QueryState) -> QueryAddition:
        """Bind the text of a recovered query again; return the query, or the query part, that has the recorded id."""
        parts = split_query(root_query_id(query.id), query.name, bind_query(query.sql, self.build_catalog()), query.since)
        addition = next((part.addition for part in parts if part.addition.id == query.id), None)
        if addition is None or any(name not in self.state.streams for name in addition.plan.streams):
            raise CheckpointError(
                f"query '{query.name}' has another plan in this version of headrace than in the one that wrote the checkpoint",
                hint="continue with that version, or start with a new checkpoint and read the input again",
            )
        return addition

    def attach_source(self, name: str, source: Source) -> None:
        """Attach the source of a stream that is about to be declared, unless another stream already reads it.

        Raises CheckpointError if the checkpoint does not have the same streams share their sources.
        """
        logged = self.unfinished_entry["streams"] if self.unfinished_entry else {}
        self.sources.attach(name, source, recovered=name in self.state.streams or name in logged)

    def declare_stream(self, stream: Stream, source: Source) -> None:
        """Declare a stream over an attached source, or let a recovered stream read it.

        A new stream starts with the oldest row that the source retains: if the source deletes rows that were read, and another
        stream reads it, at the position of that stream.

        Raises NameTakenError if another stream's name differs only in case, and CheckpointError if a recovered stream was
        declared differently.
        """
        twin = next((n for n in self.state.streams if n.lower() == stream.name.lower() and n != stream.name), None)
        if twin is not None:
            raise NameTakenError(
                f"stream '{twin}' already exists; names must differ in more than case", hint="choose another name"
            )
        earlier = self.state.streams.get(stream.name)
        if earlier is None:
            state = StreamState(stream, self.state.next_stream_number(), source.definition())
            sibling = self.sources.find_sibling(source)
            if sibling is not None and hasattr(source, "prune"):
                state.position = self.state.streams[sibling].position
            epochs.replan_streams(_isolate_stream(self.state, state), {}, partial(self._write_plan, self.state))
            self.state.next_epoch += 1
            self.state.streams[stream.name] = state
        elif (earlier.stream, earlier.source) != (stream, source.definition()):
            raise CheckpointError(
                f"stream '{stream.name}' was declared differently in this checkpoint",
                detail=f"before: {stream_to_json(earlier.stream, earlier.source)}; "
                f"now: {stream_to_json(stream, source.definition())}",
                hint="declare it as before, or start with a new checkpoint",
            )
        self.sources.add(stream.name, source)

    def rescale(self, partitions: int) -> None:
        """Use another number of key partitions from the next batch on; raises SessionError for an invalid number."""
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= _MAX_PARTITIONS:
            raise SessionError(f"invalid partition count {partitions!r}", hint=f"give an integer from 1 to {_MAX_PARTITIONS}")
        self.partitions = partitions

    def collect_join_statistics(self) -> JoinStatistics:
        """Return the statistics of window joins that recent batches measured."""
        return self.window_join_optimizer.collect_statistics(self.state)

    def has_work(self) -> bool:
        """Return whether a source has new rows or an unfinished batch must be run again."""
        return self.unfinished_entry is not None or any(
            s.pending(self.state.streams[n].position) for n, s in self.sources.items()
        )

    def advance(self, *, final: bool = False) -> BatchReport:
        """Run one micro-batch with the queued commands and the new rows of all streams; `final` closes every window.

        A failure loses no commands: they return to the queue, or are in the log entry that the next call runs. If a source
        cannot be read, nothing has been committed, so the batch is planned again from what the source then offers.
        """
        again = self.unfinished_entry is not None
        if self.unfinished_entry is None:
            queued = self.command_queue.take()
            try:
                entry = self._plan_batch(queued, final=final)
            except BaseException:
                self.command_queue.requeue(queued)
                raise
            self.checkpoint.log_batch(self.state.batch + 1, entry)
            self.unfinished_entry = entry
        try:
            report = self._run_batch(self.unfinished_entry)
        except SourceError:
            self.command_queue.requeue([commands.command_from_json(c) for c in self.unfinished_entry["commands"]])
            self.unfinished_entry = None
            if again:
                return self.advance(final=final)
            raise
        self.unfinished_entry = None
        return report

    def _plan_batch(self, requests: Sequence[Command], *, final: bool) -> dict[str, Any]:
        ranges: list[Range] = []
        positions = {}
        for name in self.sources:
            planned, positions[name] = self.sources.plan(name, self.state.streams[name].position, self.rows_per_batch)
            ranges += planned
        tasks = split_into_tasks(ranges, self.backend.parallelism)
        join_orders = self.window_join_optimizer.choose_join_orders(self.state, self.live_queries)
        probes = (
            None
            if self.sliding_join_plan is None
            else self.sliding_join_optimizer.choose_plan(self.state, self.sliding_join_plan)
        )
        return {
            "batch": self.state.batch + 1,
            "streams": {name: stream_to_json(s.stream, s.source) for name, s in self.state.declared_streams().items()},
            "functions": self.state.udfs.to_json(),
            "positions": positions,
            "tasks": [[item.to_json() for item in task] for task in tasks],
            "commands": [commands.command_to_json(c) for c in requests],
            "arrangements": {str(q): [list(version.order), version.group] for q, version in join_orders.items()},
            "probing": None if probes is None else sliding_join_epochs.choice_to_json(probes),
            "sharing": self.sliding_join_optimizer.sharing,
            "final": final,
            "partitions": self.partitions,
        }

    def _run_batch(self, entry: dict[str, Any]) -> BatchReport:
        state = self.state.snapshot()
        state.batch += 1
        state.partitions = entry["partitions"]
        for name, value in entry["streams"].items():
            if name not in state.streams:  # declared and logged, but the first commit never happened
                state.streams[name] = StreamState(stream_from_json(value), state.next_stream_number(), value["source"])
        requests = [commands.command_from_json(c) for c in entry["commands"]]
        live = self._apply_commands(state, requests)
        self._update_join_orders(state, live, entry["arrangements"])
        epochs.replan_streams(state, live, partial(self._write_plan, state))
        probes = sliding_join_epochs.replan_sliding_joins(
            state, live, self.sliding_join_plan, entry, lambda name, plan: container.write(self.checkpoint.path / name, plan)
        )
        for name, position in entry["positions"].items():
            state.streams[name].position = position
        self.checkpoint.fault("planned")
        reduce_reports = self._execute(state, entry, live, probes)
        report = replace(
            self._record_reports(state, reduce_reports, requests), changes=describe_plan_changes(self.state, state, entry)
        )
        for number in [number for number in live if root_query_id(number) in report.failed]:
            del live[number]
        state.drop_ended_parts(live, list_derived_streams(live.values()))
        state.drained = state.drained or entry["final"]
        state.drop_ended_queries(_ENDED_QUERIES_KEPT)
        marks, count = self._retire_state(state, live), len({root_query_id(number) for number in live})
        report = replace(report, marks=marks, live=count)
        self.checkpoint.commit(state.batch, state.to_json())
        self.state, self.live_queries, self.sliding_join_plan = state, live, probes
        self.checkpoint.remove_unreferenced(state.batch, state.referenced_files())
        self.sources.prune({name: stream.position for name, stream in state.declared_streams().items()})
        return report

    def _apply_commands(self, state: EngineState, requests: Sequence[Command]) -> dict[int, LiveQuery]:
        additions: list[tuple[QueryAddition, AddQuery]] = []
        for add in (request for request in requests if isinstance(request, AddQuery)):
            try:
                additions += [(part, add) for part in self._bind_parts(state, add)]
            except (HeadraceError, RecursionError) as error:  # accepted by another version, or with more stack left
                failed = QueryState(add.id, add.name, add.sql, add.sink, first_batch=state.batch, owner=add.owner)
                failed.last_batch, failed.error = state.batch, str(error)
                state.queries[add.id] = failed
        removed = {request.id for request in requests if isinstance(request, RemoveQuery)}
        removed_parts = {
            number for number in [*self.live_queries, *(part.id for part, _ in additions)] if root_query_id(number) in removed
        }
        live = {
            q.id: q
            for q in apply_changelog(
                list(self.live_queries.values()), Changelog(tuple(p for p, _ in additions), frozenset(removed_parts))
            )
        }
        for part, add in additions:
            live_query = live.get(part.id)
            if live_query is not None and add.past:
                live_query = live[part.id] = sliding_join_epochs.add_backfill(live_query, self.live_queries, state)
            record = QueryState(part.id, part.name, add.sql, add.sink, first_batch=state.batch, owner=add.owner)
            if live_query is not None:
                record.since, record.bit, record.live = live_query.since, live_query.bit, True
                record.backfills = [list(astuple(backfill)) for backfill in live_query.backfills]
            state.queries[part.id] = record
        for request in requests:
            if isinstance(request, RemoveQuery) and request.id in state.queries:
                ended = state.queries[request.id]
                ended.live, ended.last_batch, ended.error = False, state.batch, request.error
        state.drop_ended_parts(live, list_derived_streams(live.values()))
        for query in state.live_queries():
            if query.first_batch == state.batch:
                self._write_query(query, live[query.id])
        return live

    def _bind_parts(self, state: EngineState, request: AddQuery) -> list[QueryAddition]:
        """Bind a query and return its parts; add the derived streams of its inner results to the state."""
        query = bind_query(request.sql, state.build_catalog())
        since = epochs.next_epoch_start(max(state.streams[name].seen for name in query.streams))
        parts = split_query(request.id, request.name, query, since)
        for unnested in parts[-1].addition.unnested:
            if unnested.name not in state.streams:
                bases = state.streams[unnested.base].base or (unnested.base,)
                state.streams[unnested.name] = StreamState(unnested.stream, state.next_stream_number(), {}, base=bases)
        for part in parts:
            derived = part.result_stream
            if derived is not None and derived.name not in state.streams:
                base = (name for stream in part.addition.plan.streams for name in state.streams[stream].base or (stream,))
                state.streams[derived.name] = StreamState(
                    derived, state.next_stream_number(), {}, base=tuple(dict.fromkeys(base))
                )
        return [part.addition for part in parts]

    def _update_join_orders(self, state: EngineState, live: dict[int, LiveQuery], decided: Mapping[str, Any]) -> None:
        """Apply the chosen join orders, and drop join-order versions that no open window needs."""
        for number, query in live.items():
            chosen = decided.get(str(number))
            if chosen is None and len(query.order_versions) < 2:
                continue
            new = None if chosen is None else JoinOrderVersion(tuple(chosen[0]), chosen[1])
            seen = max(state.streams[name].seen for name in query.plan.streams)
            live[number] = epochs.update_join_orders(query, new, seen, state.watermark_of(query.plan.streams))
            state.queries[number].join_order_versions = [[list(a.order), a.group, a.since] for a in live[number].order_versions]

    def _execute(
        self, state: EngineState, entry: dict[str, Any], live: Mapping[int, LiveQuery], probes: SlidingJoinPlan | None
    ) -> list[ReduceReport]:
        tasks = [[Range.from_json(item) for item in task] for task in entry["tasks"]]
        if not tasks and not entry["final"]:
            return []
        return self.backend.run(self._build_job(state, entry, live, probes), tasks or [[]])

    def _build_job(
        self, state: EngineState, entry: dict[str, Any], live: Mapping[int, LiveQuery], probes: SlidingJoinPlan | None
    ) -> BatchJob:
        nesting = compute_stream_depths(live.values())
        return BatchJob(
            batch=state.batch,
            partitions=state.partitions,
            state_partitions=state.state_partitions,
            directory=str(self.checkpoint.path),
            streams={name: StreamJob(s.stream, s.plan, s.epochs, s.seen, s.base) for name, s in state.streams.items()},
            queries=tuple(query.id for query in state.live_queries()),
            aggregation_refs=state.aggregation_refs,
            session_refs=state.session_refs,
            join_buffer_refs=state.join_buffer_refs,
            extra_shuffles=max(
                [
                    probes.last_level if probes else 0,
                    *(query.extra_shuffles + compute_query_level(query.plan, nesting) for query in live.values()),
                ]
            ),
            stream_levels=nesting,
            order_versions={query.id: query.order_versions for query in live.values() if query.order_versions},
            final=entry["final"],
            drained=state.drained,
            checkpoint_id=self.checkpoint.identity,
            sliding_join_plan_file=state.sliding_join_plan_file,
            segment_refs=state.store_refs,
            udf_tags=state.udfs.all_tags,
            unnested_streams=collect_unnested_streams(live.values()),
            first_batches={query.id: state.queries[query.id].first_batch for query in probes.queries} if probes else {},
        )

    def _record_reports(
        self, state: EngineState, reduce_reports: Sequence[ReduceReport], requests: Sequence[Command]
    ) -> BatchReport:
        failed = {r.id: e for r in requests if isinstance(r, AddQuery) and (e := state.queries[r.id].error)}
        emitted: dict[int, int] = {}
        for reduce_report in reduce_reports:
            for part, message in reduce_report.failures.items():
                number = root_query_id(part)
                if number in state.queries and state.queries[number].live:
                    failed.setdefault(number, message)
            for number, rows in reduce_report.emitted_rows.items():
                emitted[number] = emitted.get(number, 0) + rows
        if reduce_reports:
            state.state_partitions = state.partitions
            state.aggregation_refs = tuple(ref for reduce_report in reduce_reports for ref in reduce_report.aggregation_refs)
            state.session_refs = tuple(ref for reduce_report in reduce_reports for ref in reduce_report.session_refs)
            state.join_buffer_refs = tuple(ref for reduce_report in reduce_reports for ref in reduce_report.join_buffer_refs)
            state.store_refs = tuple(ref for reduce_report in reduce_reports for ref in reduce_report.segment_refs)
        map_reports = [map_report for reduce_report in reduce_reports for map_report in reduce_report.map_reports]
        self.window_join_optimizer.record_batch(reduce_reports, frozenset(query.id for query in state.live_queries()))
        self.sliding_join_optimizer.record_batch(reduce_reports)
        rows = _update_stream_counts(state, map_reports)
        for number, message in failed.items():
            query = state.queries[number]
            query.live, query.error, query.last_batch = False, message, state.batch
            emitted.pop(number, None)
        for number, count in emitted.items():
            state.queries[number].emitted += count
        added = tuple(r.id for r in requests if isinstance(r, AddQuery))
        removed = tuple(r.id for r in requests if isinstance(r, RemoveQuery))
        files = tuple(file for reduce_report in reduce_reports for file in reduce_report.result_files)
        map_seconds = max(
            (map_report.seconds for reduce_report in reduce_reports for map_report in reduce_report.map_reports), default=0.0
        )
        reduce_seconds = max((reduce_report.seconds for reduce_report in reduce_reports), default=0.0)
        return BatchReport(
            state.batch, rows, sum(emitted.values()), added, removed, failed, files, map_seconds, reduce_seconds, emitted
        )

    def _retire_state(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[tuple[str, ...], EventTimeMarks]:
        """Drop epochs and state that no open window needs; return the event-time marks by set of streams."""
        read = {number: query.plan.streams for number, query in live.items()}
        by_streams = {streams: state.watermark_of(streams) for streams in set(read.values())}
        marks = {number: by_streams[streams] for number, streams in read.items()}
        for stream in state.streams.values():
            if len(stream.epochs) > 1:
                epochs.retire_epochs(stream, state.plans, marks)
        state.plans = {name: state.plans[name] for name in state.plan_files()}
        kept = {e.number for s in state.streams.values() for e in s.epochs}
        state.aggregation_refs = tuple(ref for ref in state.aggregation_refs if ref.epoch in kept)
        state.join_buffer_refs = tuple(ref for ref in state.join_buffer_refs if ref.epoch in kept)
        state.session_refs = tuple(ref for ref in state.session_refs if ref.query_id in live)
        return {streams: EventTimeMarks(mark, state.newest_common_time(streams)) for streams, mark in by_streams.items()}

    def _write_plan(self, state: EngineState, name: str, plan: StreamPlan) -> None:
        state.plans[name] = plan
        container.write(self.checkpoint.path / name, plan)

    def _write_query(self, query: QueryState, live: LiveQuery | None = None) -> None:
        """Write the query for workers. Not synced: recovery rebuilds the file from the manifest."""
        path = self.checkpoint.path / query_file_name(query.id)
        container.write(path, (live or self.live_queries[query.id], query.sink), sync=False)


def _isolate_stream(state: EngineState, stream: StreamState) -> EngineState:
    return EngineState(next_epoch=state.next_epoch, streams={stream.stream.name: stream})


def _update_stream_counts(state: EngineState, map_reports: Sequence[MapReport]) -> int:
    """Add the counts of the map tasks to the state; return the number of rows read."""
    for name, stream in state.streams.items():
        rows = sum(map_report.row_counts.get(name, 0) for map_report in map_reports)
        seen = max(
            (map_report.max_event_times[name] for map_report in map_reports if name in map_report.max_event_times),
            default=MIN_TIME,
        )
        if stream.seen > MIN_TIME:
            stream.rate = update_rate(stream.rate, rows, seen - stream.seen)
        stream.seen = max(stream.seen, seen)
        stream.rows += rows
        stream.untimed += sum(map_report.untimed_rows.get(name, 0) for map_report in map_reports)
        for map_report in map_reports:
            stream.skipped = stream.skipped | map_report.skipped_files.get(name, {})
        stream.keys = (
            merge_key_counts([map_report.key_counts[name] for map_report in map_reports if name in map_report.key_counts])
            or stream.keys
        )
    for map_report in map_reports:
        for (number, name), count in map_report.late_rows.items():
            query = state.queries.get(root_query_id(number))
            if query is not None:
                query.late_rows = {**query.late_rows, name: query.late_rows.get(name, 0) + count}
    return sum(map_report.row_counts.get(name, 0) for map_report in map_reports for name in state.declared_streams())
