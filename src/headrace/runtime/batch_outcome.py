"""The outcome of a micro-batch: the reports of its tasks become the state after the batch, and the report for users."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from headrace.connectors import PendingFile
from headrace.engine.batch_job import SAMPLED_ROWS, MapReport, ReduceReport, merge_partition_times
from headrace.engine.budgets import describe_output_excess
from headrace.model.budget import QueryBudget
from headrace.model.time import MIN_TIME
from headrace.model.watermark import compute_reached_time
from headrace.planner.changelog import list_derived_streams, root_query_id
from headrace.planner.shared_plan import LiveQuery
from headrace.planner.statistics import merge_key_counts, update_rate
from headrace.runtime import epochs
from headrace.runtime.batch_figures import (
    BatchFigures,
    LagCounter,
    collect_operator_figures,
    collect_pair_counts,
    collect_store_counts,
    collect_stream_figures,
    sum_component_seconds,
)
from headrace.runtime.batch_log import BatchLogEntry
from headrace.runtime.commands import AddQuery, RemoveQuery
from headrace.runtime.engine_state import EngineState, StreamState
from headrace.runtime.metrics import BatchReport, EventTimeMarks, describe_plan_changes

_ENDED_QUERIES_KEPT = 1_000  # ended queries that the manifest retains


def record_outcome(
    before: EngineState,
    state: EngineState,
    live: dict[int, LiveQuery],
    entry: BatchLogEntry,
    reports: Sequence[ReduceReport],
    budget: QueryBudget,
    count_lag: LagCounter = lambda *_: None,
    waiting: Container[int] = (),
) -> BatchReport:
    """Record the reports of all reduce tasks in the state of the batch; return the report for users.

    Results of the ended queries `waiting` are not delivered yet. Drop failed queries from `live`, and retire what no query needs:
    the state is then that after the batch.
    """
    map_reports = [map_report for report in reports for map_report in report.map_reports]
    if reports:
        _record_state_files(state, reports)
    failed = _collect_failures(state, entry, reports, budget)
    emitted = _count_emitted_rows(reports, failed)
    state.unpublished = _collect_sink_files(state, reports, failed)
    rows = _update_stream_counts(state, map_reports)
    for number, message in failed.items():
        query = state.queries[number]
        query.live, query.error, query.last_batch = False, message, state.batch
        query.schema = live[number].plan.schema if number in live else query.schema
    for number, count in emitted.items():
        state.queries[number].emitted += count
    changes = describe_plan_changes(before, state, entry)
    for number in [number for number in live if root_query_id(number) in failed]:
        del live[number]
    state.drop_ended_parts(live, list_derived_streams(live.values()))
    if entry.final:
        state.left_open = entry.left_open & state.left_open if state.drained else entry.left_open
        state.drained = True
    state.drop_ended_queries(_ENDED_QUERIES_KEPT, waiting)
    return BatchReport(
        state.batch,
        rows,
        sum(emitted.values()),
        added=tuple(command.id for command in entry.commands if isinstance(command, AddQuery)),
        removed=tuple(c.id for c in entry.commands if isinstance(c, RemoveQuery) and c.id not in failed),
        failed=failed,
        files=tuple(file.key for report in reports for file in report.result_files),
        stage_one_seconds=max((map_report.seconds for map_report in map_reports), default=0.0),
        stage_two_seconds=max((report.seconds for report in reports), default=0.0),
        emitted_by=emitted,
        changes=changes,
        marks=_retire_state(state, live),
        live=len({root_query_id(number) for number in live}),
        partitions=state.partitions,
        map_seconds=tuple(map_report.seconds for map_report in map_reports),
        reduce_seconds=_sum_reduce_seconds(state.partitions, reports),
        split_hashes=_list_split_hashes(state.partitions, reports),
        figures=BatchFigures(
            streams=collect_stream_figures(before, state, entry, map_reports, count_lag),
            operators=collect_operator_figures(state, live, reports),
            stores=collect_store_counts(state, reports),
            window_pairs=collect_pair_counts(reports),
            components=sum_component_seconds(map_reports, reports),
        ),
    )


def _sum_reduce_seconds(partitions: int, reports: Sequence[ReduceReport]) -> tuple[float, ...]:
    """Return the seconds of the reduce tasks by partition; empty without a job."""
    seconds = [0.0] * (partitions if reports else 0)
    for report in reports:
        seconds[report.partition] += report.seconds
    return tuple(seconds)


def _list_split_hashes(partitions: int, reports: Sequence[ReduceReport]) -> tuple[int | None, ...]:
    """Return by partition where its load can be divided: as its longest task has found. Empty without a job."""
    by_time = sorted(reports, key=lambda report: report.seconds)
    found = {report.partition: report.split_hash for report in by_time}
    return tuple(found.get(partition) for partition in range(partitions)) if reports else ()


def _record_state_files(state: EngineState, reports: Sequence[ReduceReport]) -> None:
    state.state_map = state.partition_map
    state.aggregation_refs = tuple(ref for report in reports for ref in report.aggregation_refs)
    state.session_refs = tuple(ref for report in reports for ref in report.session_refs)
    state.join_buffer_refs = tuple(ref for report in reports for ref in report.join_buffer_refs)
    state.store_refs = tuple(ref for report in reports for ref in report.segment_refs)
    state.results = state.results.add_files(tuple(file for report in reports for file in report.result_files))
    state.deliveries += tuple(file for report in reports for file in report.delivery_files)


def _collect_failures(
    state: EngineState, entry: BatchLogEntry, reports: Sequence[ReduceReport], default: QueryBudget
) -> dict[int, str]:
    """Return the errors of queries that failed in this batch, by query id."""
    failed = {
        command.id: error
        for command in entry.commands
        if isinstance(command, AddQuery | RemoveQuery)
        and command.id in state.queries
        and (error := state.queries[command.id].error)
    }
    for report in reports:
        for part, message in report.failures.items():
            number = root_query_id(part)
            if number in state.queries and state.queries[number].live:
                failed.setdefault(number, message)
    for number, rows in _count_emitted_rows(reports, failed).items():
        message = describe_output_excess(state.queries[number].budget or default, rows, 0)
        if message:
            failed[number] = message
    return failed


def _count_emitted_rows(reports: Sequence[ReduceReport], failed: Mapping[int, str]) -> dict[int, int]:
    emitted: dict[int, int] = {}
    for report in reports:
        for number, rows in report.emitted_rows.items():
            if number not in failed:
                emitted[number] = emitted.get(number, 0) + rows
    return emitted


def _collect_sink_files(
    state: EngineState, reports: Sequence[ReduceReport], failed: Mapping[int, str]
) -> dict[int | str, tuple[PendingFile, ...]]:
    """Return the files to publish: those still to be published, those of queries that did not fail, and dead letters."""
    files: dict[int | str, tuple[PendingFile, ...]] = dict(state.unpublished)
    for report in reports:
        written: dict[int | str, list[PendingFile]] = {}
        for part, sink_files in report.sink_files.items():
            if root_query_id(part) not in failed:
                written.setdefault(root_query_id(part), []).extend(sink_files)
        for map_report in report.map_reports:
            for stream, letters in map_report.dead_letters.items():
                written.setdefault(stream, []).extend(letters)
        for owner, found in written.items():
            files[owner] = (*files.get(owner, ()), *found)
    return files


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
        _update_partition_times(stream, map_reports)
        stream.rows += rows
        stream.ahead += sum(map_report.ahead_rows.get(name, 0) for map_report in map_reports)
        stream.untimed += sum(map_report.untimed_rows.get(name, 0) for map_report in map_reports)
        for map_report in map_reports:
            stream.skipped = stream.skipped | map_report.skipped_files.get(name, {})
            stream.skipped_rows += map_report.skipped_rows.get(name, 0)
            stream.skipped_samples = (*stream.skipped_samples, *map_report.skipped_samples.get(name, ()))[-SAMPLED_ROWS:]
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


def _update_partition_times(stream: StreamState, map_reports: Sequence[MapReport]) -> None:
    if stream.stream.watermark_by == "partition":
        times = {stream.stream.name: dict(stream.partition_times)}
        for map_report in map_reports:
            merge_partition_times(times, map_report)
        stream.partition_times = times[stream.stream.name]
        stream.reached = compute_reached_time(stream.reached, stream.partition_times, stream.idle_partitions)


def _retire_state(state: EngineState, live: Mapping[int, LiveQuery]) -> dict[tuple[str, ...], EventTimeMarks]:
    """Drop epochs and state that no open window needs; return the event-time marks by set of streams."""
    read = {number: query.plan.streams for number, query in live.items()}
    by_streams = {streams: state.watermark_of(streams) for streams in set(read.values())}
    marks = {number: by_streams[streams] for number, streams in read.items()}
    for stream in state.streams.values():
        if len(stream.epochs) > 1:
            epochs.retire_epochs(stream, state.plans, marks)
    state.drop_unused_plans()
    kept = {epoch.number for stream in state.streams.values() for epoch in stream.epochs}
    state.aggregation_refs = tuple(ref for ref in state.aggregation_refs if ref.epoch in kept)
    state.join_buffer_refs = tuple(ref for ref in state.join_buffer_refs if ref.epoch in kept)
    state.session_refs = tuple(ref for ref in state.session_refs if ref.query_id in live)
    return {streams: EventTimeMarks(mark, state.newest_common_time(streams)) for streams, mark in by_streams.items()}
