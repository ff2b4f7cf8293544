"""The coordinator: one micro-batch after the other, each logged, run and committed.

It plans, commits and answers; it never touches rows. Everything it decides for a batch is in the log before the batch
runs, so that a batch that was cut off is run again exactly as it was meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

from headrace.connectors import Range, Source
from headrace.errors import CheckpointError, HeadraceError, NameTakenError, SessionError, SourceError
from headrace.execution.job import Header, Job, Outcome, StreamJob, query_file
from headrace.kernels import pack
from headrace.model.stream import Stream
from headrace.runtime import commands, epoch, probing
from headrace.runtime.backend import Backend
from headrace.runtime.balance import balance
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.commands import Add, Command, Remove, Requests
from headrace.runtime.functions import Functions
from headrace.runtime.optimizer import Optimizer
from headrace.runtime.probe_optimizer import ProbeOptimizer, sharing_of
from headrace.runtime.report import BatchReport, Marks, changes
from headrace.runtime.state import EngineState, QueryState, StreamState, declaration, declared
from headrace.sharing.arrangement import Arrangement
from headrace.sharing.changelog import Addition, Changelog, apply
from headrace.sharing.join_order import JoinStatistics
from headrace.sharing.multiway.probes import ProbePlan
from headrace.sharing.parts import depths, level, made_of, parts_of, unfolded_of, whole
from headrace.sharing.shared_plan import LiveQuery, StreamPlan
from headrace.sharing.slicing import NEVER
from headrace.sharing.statistics import most_keys, next_rate
from headrace.sql import Catalog, bind_query

_MAX_PARTITIONS = 10_000
_REMEMBERED = 1_000  # queries that are over and still known by name


class Coordinator:
    """Holds the state after the last committed batch. One thread at a time calls `advance`."""

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, partitions: int | None, rows_per_batch: int, multiway: str = "global"
    ) -> None:
        """Recover what the checkpoint holds; a batch that was logged but not committed is run first.

        Without `partitions` there are as many as before, or in a new checkpoint as many as the back-end works on at once.
        """
        self.checkpoint, self.backend, self.rows_per_batch = checkpoint, backend, rows_per_batch
        self.state = EngineState(partitions=backend.parallelism if partitions is None else partitions)
        self.requests = Requests()
        self.sources: dict[str, Source] = {}
        self.live: dict[int, LiveQuery] = {}
        self.optimizer, self.prober = Optimizer(), ProbeOptimizer(sharing=sharing_of(multiway))
        self.probes: ProbePlan | None = None
        self._recover()
        self.rescale(self.state.partitions if partitions is None else partitions)

    def _recover(self) -> None:
        found = self.checkpoint.last_manifest()
        if found is not None:
            self.state = EngineState.from_json(found[1])
            self.state.plans = {name: pack.read(self.checkpoint.path / name) for name in self.state.planned()}
            self.probes = pack.read(self.checkpoint.path / self.state.probing) if self.state.probing else None
        self.unfinished = self.checkpoint.logged(self.state.batch + 1)
        if self.unfinished is not None:
            self.state.functions = Functions.from_json(self.unfinished.get("functions", {}))
        for query in self.state.live():
            arranged = tuple(Arrangement(tuple(order), group, since) for order, group, since in query.arrangements)
            part = self._part_of(query)
            begun = LiveQuery(query.id, query.name, part.plan, query.since, query.bit, arranged, part.feeds)
            self.live[query.id] = replace(begun, lent=probing.loans_of(query), unfolded=part.unfolded)
            self._write_query(query)
        probing.check_sharing(self.probes, self.live, self.prober.sharing)

    def catalog(self) -> Catalog:
        """Return the declared streams and registered functions."""
        return self.state.catalog()

    def _part_of(self, query: QueryState) -> Addition:
        """Return what a recovered query, or part of one, is."""
        parts = parts_of(whole(query.id), query.name, bind_query(query.sql, self.catalog()), query.since)
        found = next((part.addition for part in parts if part.addition.id == query.id), None)
        if found is None or any(name not in self.state.streams for name in found.plan.streams):
            raise CheckpointError(
                f"query '{query.name}' means something else to this headrace than to the one that wrote the checkpoint",
                hint="go on with that one, or start with a new checkpoint and read the input again",
            )
        return found

    def declare(self, stream: Stream, source: Source) -> None:
        """Take a stream, or give a recovered one its source back; the declaration must then be the same."""
        twin = next((n for n in self.state.streams if n.lower() == stream.name.lower() and n != stream.name), None)
        if twin is not None:
            raise NameTakenError(f"stream '{twin}' is already there; names differ in more than case", hint="choose another name")
        known = self.state.streams.get(stream.name)
        if known is None:
            state = StreamState(stream, self.state.next_number(), source.definition())
            epoch.replan(_only(self.state, state), {}, partial(self._write_plan, self.state))
            self.state.next_epoch += 1
            self.state.streams[stream.name] = state
        elif (known.stream, known.source) != (stream, source.definition()):
            raise CheckpointError(
                f"stream '{stream.name}' was declared otherwise in this checkpoint",
                detail=f"then: {declaration(known.stream, known.source)}; now: {declaration(stream, source.definition())}",
                hint="declare it as before, or start with a new checkpoint",
            )
        self.sources[stream.name] = source

    def rescale(self, partitions: int) -> None:
        """Work with another number of key partitions from the next batch on."""
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= _MAX_PARTITIONS:
            raise SessionError(f"{partitions!r} partitions cannot be", hint=f"give a number from 1 to {_MAX_PARTITIONS}")
        self.partitions = partitions

    def join_statistics(self) -> JoinStatistics:
        """Return what running batches have shown of joins."""
        return self.optimizer.statistics(self.state)

    def has_work(self) -> bool:
        """Tell whether there is anything to read (or to run again)."""
        return self.unfinished is not None or any(s.pending(self.state.streams[n].position) for n, s in self.sources.items())

    def advance(self, *, final: bool = False) -> BatchReport:
        """Run one micro-batch: the requests that wait, and what is new on the streams.

        Whatever goes wrong, requests are not lost: they wait again, or are in the log entry that is run next time. Where a
        source cannot be read nothing has been written, so that batch is planned anew, with what the source says then.
        """
        again = self.unfinished is not None
        if self.unfinished is None:
            taken = self.requests.take()
            try:
                entry = self._plan_batch(taken, final=final)
            except BaseException:
                self.requests.give_back(taken)
                raise
            self.checkpoint.log(self.state.batch + 1, entry)
            self.unfinished = entry
        try:
            report = self._run(self.unfinished)
        except SourceError:
            self.requests.give_back([commands.from_json(c) for c in self.unfinished["commands"]])
            self.unfinished = None
            if again:
                return self.advance(final=final)
            raise
        self.unfinished = None
        return report

    def _plan_batch(self, requests: Sequence[Command], *, final: bool) -> dict[str, Any]:
        ranges: list[Range] = []
        positions = {}
        for name, source in self.sources.items():
            found, positions[name] = source.plan(self.state.streams[name].position, self.rows_per_batch)
            ranges += found
        tasks = balance(ranges, self.backend.parallelism)
        decided = self.optimizer.decide(self.state, self.live)
        probes = None if self.probes is None else self.prober.decide(self.state, self.probes)
        return {
            "batch": self.state.batch + 1,
            "streams": {name: declaration(s.stream, s.source) for name, s in self.state.declared().items()},
            "functions": self.state.functions.to_json(),
            "positions": positions,
            "tasks": [[one.to_json() for one in task] for task in tasks],
            "commands": [commands.to_json(c) for c in requests],
            "arrangements": {str(q): [list(one.order), one.group] for q, one in decided.items()},
            "probing": None if probes is None else probing.to_json(probes),
            "sharing": self.prober.sharing,
            "final": final,
            "partitions": self.partitions,
        }

    def _run(self, entry: dict[str, Any]) -> BatchReport:
        state = self.state.snapshot()
        state.batch += 1
        state.partitions = entry["partitions"]
        for name, value in entry["streams"].items():
            if name not in state.streams:  # declared, logged, and then cut off before the first commit
                state.streams[name] = StreamState(declared(value), state.next_number(), value["source"])
        requests = [commands.from_json(c) for c in entry["commands"]]
        live = self._apply(state, requests)
        self._rearrange(state, live, entry["arrangements"])
        epoch.replan(state, live, partial(self._write_plan, state))
        probes = probing.replan(state, live, self.probes, entry, lambda name, plan: pack.write(self.checkpoint.path / name, plan))
        for name, position in entry["positions"].items():
            state.streams[name].position = position
        self.checkpoint.fault("planned")
        outcomes = self._execute(state, entry, live, probes)
        report = replace(self._account(state, outcomes, requests), changes=changes(self.state, state, entry))
        for number in [number for number in live if whole(number) in report.failed]:
            del live[number]
        state.forget_parts(live, made_of(live.values()))
        state.drained = state.drained or entry["final"]
        state.forget(_REMEMBERED)
        marks, count = self._retire(state, live), len({whole(number) for number in live})
        report = replace(report, marks=marks, live=count)
        self.checkpoint.commit(state.batch, state.to_json())
        self.state, self.live, self.probes = state, live, probes
        self.checkpoint.clean(state.batch, state.files())
        self._prune()
        return report

    def _apply(self, state: EngineState, requests: Sequence[Command]) -> dict[int, LiveQuery]:
        additions: list[tuple[Addition, Add]] = []
        for add in (request for request in requests if isinstance(request, Add)):
            try:
                additions += [(part, add) for part in self._parts(state, add)]
            except (HeadraceError, RecursionError) as error:  # it was accepted by another version, or by one with more stack left
                told = QueryState(add.id, add.name, add.sql, add.sink, first_batch=state.batch, owner=add.owner)
                told.last_batch, told.error = state.batch, str(error)
                state.queries[add.id] = told
        removed = {request.id for request in requests if isinstance(request, Remove)}
        gone = {number for number in [*self.live, *(part.id for part, _ in additions)] if whole(number) in removed}
        live = {q.id: q for q in apply(list(self.live.values()), Changelog(tuple(p for p, _ in additions), frozenset(gone)))}
        for part, add in additions:
            one = live.get(part.id)
            if one is not None and add.past:
                one = live[part.id] = probing.with_past(one, self.live, state)
            record = QueryState(part.id, part.name, add.sql, add.sink, first_batch=state.batch, owner=add.owner)
            if one is not None:
                record.since, record.bit, record.live = one.since, one.bit, True
                record.lent = [list(astuple(loan)) for loan in one.lent]
            state.queries[part.id] = record
        for request in requests:
            if isinstance(request, Remove) and request.id in state.queries:
                over = state.queries[request.id]
                over.live, over.last_batch, over.error = False, state.batch, request.error
        state.forget_parts(live, made_of(live.values()))
        for query in state.live():
            if query.first_batch == state.batch:
                self._write_query(query, live[query.id])
        return live

    def _parts(self, state: EngineState, request: Add) -> list[Addition]:
        """Return what a query adds; the streams that inner results are get known."""
        query = bind_query(request.sql, state.catalog())
        since = epoch.start_of(max(state.streams[name].seen for name in query.streams))
        parts = parts_of(request.id, request.name, query, since)
        for one in parts[-1].addition.unfolded:
            if one.name not in state.streams:
                below = state.streams[one.base].base or (one.base,)
                state.streams[one.name] = StreamState(one.stream, state.next_number(), {}, base=below)
        for part in parts:
            made = part.results
            if made is not None and made.name not in state.streams:
                base = (name for one in part.addition.plan.streams for name in state.streams[one].base or (one,))
                state.streams[made.name] = StreamState(made, state.next_number(), {}, base=tuple(dict.fromkeys(base)))
        return [part.addition for part in parts]

    def _rearrange(self, state: EngineState, live: dict[int, LiveQuery], decided: Mapping[str, Any]) -> None:
        """Give joins the arrangements that were decided, and take away those that no open window needs."""
        for number, query in live.items():
            chosen = decided.get(str(number))
            if chosen is None and len(query.arrangements) < 2:
                continue
            new = None if chosen is None else Arrangement(tuple(chosen[0]), chosen[1])
            seen = max(state.streams[name].seen for name in query.plan.streams)
            live[number] = epoch.rearrange(query, new, seen, state.watermark(query.plan.streams))
            state.queries[number].arrangements = [[list(a.order), a.group, a.since] for a in live[number].arrangements]

    def _execute(
        self, state: EngineState, entry: dict[str, Any], live: Mapping[int, LiveQuery], probes: ProbePlan | None
    ) -> list[Outcome]:
        tasks = [[Range.from_json(one) for one in task] for task in entry["tasks"]]
        if not tasks and not entry["final"]:
            return []
        return self.backend.run(self._job(state, entry, live, probes), tasks or [[]])

    def _job(self, state: EngineState, entry: dict[str, Any], live: Mapping[int, LiveQuery], probes: ProbePlan | None) -> Job:
        deep = depths(live.values())
        return Job(
            batch=state.batch,
            partitions=state.partitions,
            dealt=state.dealt,
            directory=str(self.checkpoint.path),
            streams={name: StreamJob(s.stream, s.plan, s.epochs, s.seen, s.base) for name, s in state.streams.items()},
            queries=tuple(query.id for query in state.live()),
            parts=state.parts,
            sessions=state.sessions,
            buckets=state.buckets,
            levels=max([probes.levels if probes else 0, *(query.levels + level(query.plan, deep) for query in live.values())]),
            depths=deep,
            arrangements={query.id: query.arrangements for query in live.values() if query.arrangements},
            final=entry["final"],
            drained=state.drained,
            identity=self.checkpoint.identity,
            probing=state.probing,
            stores=state.stores,
            functions=state.functions.tags,
            unfolded=unfolded_of(live.values()),
            born={one.id: state.queries[one.id].first_batch for one in probes.queries} if probes else {},
        )

    def _account(self, state: EngineState, outcomes: Sequence[Outcome], requests: Sequence[Command]) -> BatchReport:
        failed = {r.id: e for r in requests if isinstance(r, Add) and (e := state.queries[r.id].error)}
        emitted: dict[int, int] = {}
        for outcome in outcomes:
            for part, message in outcome.failures.items():
                number = whole(part)
                if number in state.queries and state.queries[number].live:
                    failed.setdefault(number, message)
            for number, rows in outcome.emitted.items():
                emitted[number] = emitted.get(number, 0) + rows
        if outcomes:
            state.dealt = state.partitions
            state.parts = tuple(ref for outcome in outcomes for ref in outcome.parts)
            state.sessions = tuple(ref for outcome in outcomes for ref in outcome.sessions)
            state.buckets = tuple(ref for outcome in outcomes for ref in outcome.buckets)
            state.stores = tuple(ref for outcome in outcomes for ref in outcome.stores)
        headers = [header for outcome in outcomes for header in outcome.headers]
        self.optimizer.note(outcomes, frozenset(query.id for query in state.live()))
        self.prober.note(outcomes)
        rows = _count(state, headers)
        for number, message in failed.items():
            query = state.queries[number]
            query.live, query.error, query.last_batch = False, message, state.batch
            emitted.pop(number, None)
        for number, count in emitted.items():
            state.queries[number].emitted += count
        added = tuple(r.id for r in requests if isinstance(r, Add))
        removed = tuple(r.id for r in requests if isinstance(r, Remove))
        files = tuple(file for outcome in outcomes for file in outcome.results)
        one = max((header.seconds for outcome in outcomes for header in outcome.headers), default=0.0)
        two = max((outcome.seconds for outcome in outcomes), default=0.0)
        return BatchReport(state.batch, rows, sum(emitted.values()), added, removed, failed, files, one, two, emitted)

    def _retire(self, state: EngineState, live: Mapping[int, LiveQuery]) -> dict[tuple[str, ...], Marks]:
        """Let go of state that no open window needs; return how far event time has come."""
        read = {number: query.plan.streams for number, query in live.items()}
        by_streams = {streams: state.watermark(streams) for streams in set(read.values())}
        marks = {number: by_streams[streams] for number, streams in read.items()}
        for stream in state.streams.values():
            if len(stream.epochs) > 1:
                epoch.retire(stream, state.plans, marks)
        state.plans = {name: state.plans[name] for name in state.planned()}
        kept = {e.number for s in state.streams.values() for e in s.epochs}
        state.parts = tuple(ref for ref in state.parts if ref.epoch in kept)
        state.buckets = tuple(ref for ref in state.buckets if ref.epoch in kept)
        state.sessions = tuple(ref for ref in state.sessions if ref.query in live)
        return {streams: Marks(mark, state.newest(streams)) for streams, mark in by_streams.items()}

    def _prune(self) -> None:
        for name, source in self.sources.items():
            prune = getattr(source, "prune", None)
            if prune is not None:
                prune(self.state.streams[name].position)

    def _write_plan(self, state: EngineState, name: str, plan: StreamPlan) -> None:
        state.plans[name] = plan
        pack.write(self.checkpoint.path / name, plan)

    def _write_query(self, query: QueryState, live: LiveQuery | None = None) -> None:
        """Give workers the query; it can be made again from the manifest, so it need not survive a power cut."""
        path = self.checkpoint.path / query_file(query.id)
        pack.write(path, (live or self.live[query.id], query.sink), sync=False)


def _only(state: EngineState, stream: StreamState) -> EngineState:
    return EngineState(next_epoch=state.next_epoch, streams={stream.stream.name: stream})


def _count(state: EngineState, headers: Sequence[Header]) -> int:
    """Add what the tasks counted to the state; return the rows read."""
    for name, stream in state.streams.items():
        rows = sum(header.rows.get(name, 0) for header in headers)
        seen = max((header.seen[name] for header in headers if name in header.seen), default=NEVER)
        if stream.seen > NEVER:
            stream.rate = next_rate(stream.rate, rows, seen - stream.seen)
        stream.seen = max(stream.seen, seen)
        stream.rows += rows
        stream.untimed += sum(header.untimed.get(name, 0) for header in headers)
        for header in headers:
            stream.skipped = stream.skipped | header.skipped.get(name, {})
        stream.keys = most_keys([header.keys[name] for header in headers if name in header.keys]) or stream.keys
    for header in headers:
        for (number, name), count in header.late.items():
            query = state.queries.get(whole(number))
            if query is not None:
                query.late = {**query.late, name: query.late.get(name, 0) + count}
    return sum(header.rows.get(name, 0) for header in headers for name in state.declared())
