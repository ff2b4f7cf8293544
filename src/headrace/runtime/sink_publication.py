"""Publication of sink files: the files of a committed batch get their visible names, all others are swept.

Workers write pending files, which readers do not see (`connectors.pending_files`). Before the commit the driver checks that it
sees each of them: a folder that a worker does not share with the driver fails its query, and nothing of it is committed. The
manifest names the files to publish; whatever happens after the commit, they are published by this session or by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from itertools import chain
from typing import TypeVar

from headrace.connectors import FileSink, PendingFile, Range, sink_set_from_json
from headrace.connectors.letter_topic import locate_letters
from headrace.connectors.pending_files import (
    find_pending_size,
    has_pending_folder,
    open_sink_store,
    publish_files,
    sweep_pending_files,
)
from headrace.connectors.skipped_rows import is_letter_topic
from headrace.engine.batch_job import ReduceReport
from headrace.errors import HeadraceError, SinkError, SourceError, StorageError
from headrace.runtime.attached_sources import AttachedSources
from headrace.runtime.command_queue import CommandQueue
from headrace.runtime.commands import RemoveQuery
from headrace.runtime.engine_state import EngineState
from headrace.runtime.letter_publication import LetterPublisher
from headrace.runtime.source_health import to_source_error
from headrace.storage.checkpoint import Checkpoint

_LOG = logging.getLogger("headrace")
_THREADS = 16
_CHECKED_TOGETHER = 8  # files, by one thread at least
SWEEP_INTERVAL = 256  # batches between two sweeps of a sink, or of the checkpoint, when no query and no attempt fails

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class SinkPublisher:
    """Publishes the sink files of one checkpoint. Callers serialize calls, between the tasks of two batches."""

    def __init__(self, checkpoint: Checkpoint, command_queue: CommandQueue, sources: AttachedSources) -> None:
        """Take the checkpoint; queries that fail end by a command, and streams by dead letters degrade."""
        self._checkpoint, self._command_queue, self._sources = checkpoint, command_queue, sources
        self._letter_folders: set[str] = set()  # those known to this session
        self._letters = LetterPublisher(checkpoint)
        self._ended: set[int] = set()  # queries whose end is a command already
        self._pool: ThreadPoolExecutor | None = None
        self.has_first_retry = False  # whether a publication was refused, and not tried again yet

    def check_reports(self, reports: Sequence[ReduceReport]) -> None:
        """Check, before the commit, that the driver sees all files that workers report.

        Add a failure to the report of a query whose file it does not see. Raises SourceError for a file of dead letters: without
        it, its stream must not move on.
        """
        written = [(r, query, file) for r in reports for query, files in r.sink_files.items() for file in files]
        letters = [
            (stream, file)
            for report in reports
            for map_report in report.map_reports
            for stream, files in map_report.dead_letters.items()
            for file in files
        ]
        self._letter_folders |= {file.folder for _, file in letters}
        files = [*(file for *_, file in written), *(file for _, file in letters)]
        errors = self._run_parallel(_check_visibility, files, _CHECKED_TOGETHER)
        for (report, query, _), error in zip(written, errors, strict=False):
            if error is not None:
                report.failures.setdefault(query, str(error))
        for (stream, _), error in zip(letters, errors[len(written) :], strict=True):
            if error is not None:
                raise SourceError(error.message, stream=stream, detail=error.detail, hint=error.hint)

    def publish(self, state: EngineState) -> None:
        """Publish the files of a batch that was just committed; those that the disk refuses are tried again by `retry`."""
        self._plan_retry(self._publish(state))

    def _plan_retry(self, refused: Mapping[int | str, HeadraceError]) -> None:
        self.has_first_retry = bool(refused)
        for error in refused.values():
            _LOG.warning("sink files are not published yet: %s", error)

    def retry(self, state: EngineState) -> None:
        """Publish what was refused; what is refused again fails its query, or degrades its stream, and stays."""
        self.has_first_retry = False
        self._fail_owners(state, self._publish(state))

    def recover(self, state: EngineState, tasks: Iterable[Sequence[Range]]) -> None:
        """Publish what the newest manifest names, and sweep all sinks; `tasks` are those of the unfinished batch."""
        self._letters.recover([file for owner, files in state.unpublished.items() if isinstance(owner, str) for file in files])
        self._plan_retry(self._publish(state, is_recovery=True))
        self.sweep(state, (), tasks, everything=True)

    def _publish(self, state: EngineState, *, is_recovery: bool = False) -> dict[int | str, HeadraceError]:
        """Publish as much as possible, and keep the rest in the state; return why, by query or stream."""
        groups = [(owner, files) for owner, all_files in state.unpublished.items() for files in _group_by_folder(all_files)]
        letters = [(owner, files) for owner, files in groups if self._is_for_topic(owner, files)]
        groups = [group for group in groups if group not in letters]
        self._letter_folders |= {files[0].folder for owner, files in groups if isinstance(owner, str)}
        outcomes = self._run_parallel(partial(_try_to_publish, is_recovery), [files for _, files in groups])
        refused: dict[int | str, HeadraceError] = {}
        unpublished: dict[int | str, tuple[PendingFile, ...]] = {}
        for (owner, files), (error, is_final) in zip(groups, outcomes, strict=True):
            if error is not None and is_final:
                self._fail_owners(state, {owner: error})
            elif error is not None:
                refused.setdefault(owner, error)
                unpublished[owner] = (*unpublished.get(owner, ()), *files)
        for stream, files in letters:
            left, failure = (files, None) if is_recovery else self._publish_letters(str(stream), files)
            if failure is not None:
                refused.setdefault(stream, failure)
            if left:
                unpublished[stream] = (*unpublished.get(stream, ()), *left)
        state.unpublished = unpublished
        return refused

    def _publish_letters(self, stream: str, files: Sequence[PendingFile]) -> tuple[tuple[PendingFile, ...], SinkError | None]:
        return self._letters.publish(stream, files, getattr(self._sources.get(stream), "client_options", None))

    def _is_for_topic(self, owner: int | str, files: Sequence[PendingFile]) -> bool:
        return isinstance(owner, str) and files[0].folder == locate_letters(self._checkpoint.location, owner)

    def has_due_files(self, state: EngineState) -> bool:
        """Return whether a publication was refused and not tried again yet, or dead letters are to be sent now."""
        waiting = (
            str(owner) for owner, files in state.unpublished.items() for file in files if self._is_for_topic(owner, [file])
        )
        return self.has_first_retry or any(map(self._letters.is_due, waiting))

    def _fail_owners(self, state: EngineState, errors: Mapping[int | str, HeadraceError]) -> None:
        for owner, error in errors.items():
            if isinstance(owner, str) and owner in state.streams:
                self._sources.health.record_failure(owner, to_source_error(owner, error))
            elif isinstance(owner, int) and owner in state.queries and state.queries[owner].live and owner not in self._ended:
                self._ended.add(owner)
                self._command_queue.append(RemoveQuery(owner, str(error)))
            else:
                _LOG.warning("sink files of a query or stream that has ended are not published: %s", error)

    def sweep(self, state: EngineState, failed: Collection[int], tasks: Iterable[Sequence[Range]], *, everything: bool) -> None:
        """Delete pending files that do not count: in the sinks of failed queries, in all sinks, or in some in turn.

        A late task of an earlier attempt may write a file at any time, so that every sink has its turn again and again.
        """
        turn = state.batch % SWEEP_INTERVAL
        swept = (
            query for query in state.queries.values() if everything or query.id % SWEEP_INTERVAL == turn or query.id in failed
        )
        sinks = [item.sink.path for query in swept for item in sink_set_from_json(query.sink) if isinstance(item.sink, FileSink)]
        if everything:
            self._letter_folders |= {folder for split in chain.from_iterable(tasks) if (folder := self._locate_letters(split))}
        letters = self._letter_folders if everything or turn == 0 else ()
        kept = frozenset(file.key for files in state.unpublished.values() for file in files)
        self._run_parallel(partial(self._try_to_sweep, kept), [*sinks, *sorted(letters)])

    def _locate_letters(self, split: Range) -> str:
        target = str(split.options.get("dead_letter", ""))
        return locate_letters(self._checkpoint.location, split.stream) if is_letter_topic(target) else target

    def _try_to_sweep(self, kept: frozenset[str], folder: str) -> None:
        try:
            sweep_pending_files(folder, self._checkpoint.identity, kept, self._checkpoint.check_owner)
        except (OSError, StorageError) as error:
            _LOG.warning("pending files in '%s' are not deleted yet: %s", folder, error)

    def _run_parallel(self, function: Callable[[_Item], _Result], items: Sequence[_Item], per_thread: int = 1) -> list[_Result]:
        """Return the results of a function for all items, in their order; several threads wait for the disk at once."""
        size = max(per_thread, -(-len(items) // _THREADS))
        if len(items) <= size:
            return [function(item) for item in items]
        self._pool = self._pool or ThreadPoolExecutor(_THREADS, "headrace-sinks")
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        futures = [self._pool.submit(copy_context().run, _call_for_all, function, chunk) for chunk in chunks]
        wait(futures)
        return [result for future in futures for result in future.result()]

    def close(self) -> None:
        """End the threads."""
        self._letters.close()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _call_for_all(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    return [function(item) for item in items]


def _group_by_folder(files: Sequence[PendingFile]) -> list[list[PendingFile]]:
    folders: dict[str, list[PendingFile]] = {}
    for file in files:
        folders.setdefault(file.folder, []).append(file)
    return list(folders.values())


def _check_visibility(file: PendingFile) -> SinkError | None:
    """Return an error if the driver does not see a file as the worker wrote it."""
    size = find_pending_size(file)
    if size == file.bytes:
        return None
    seen = "there is no such file here" if size is None else f"the file has {size:,} bytes here"
    return SinkError(
        f"a worker wrote sink file '{open_sink_store(file.folder).name_of(file.key)}', but the driver does not see it",
        detail=f"the worker wrote {file.bytes:,} bytes; {seen}",
        hint="the folder of a sink must be shared by all workers and the driver, under the same path; or use an object store",
    )


def _try_to_publish(is_recovery: bool, files: Sequence[PendingFile]) -> tuple[HeadraceError | None, bool]:
    """Publish the files of a sink; return the error, if any, and whether it is final.

    After a restart, a file that has no name any more was published, and a reader of the sink has deleted it, or moved it away.
    """
    folder = files[0].folder
    try:
        gone = publish_files(files)
    except StorageError as error:
        return SinkError(f"sink files in '{folder}' cannot be published", detail=f"{error.message}: {error.detail}"), False
    except OSError as error:
        return SinkError(f"sink files in '{folder}' cannot be published", detail=str(error)), False
    if not gone:
        return None, True
    name = open_sink_store(folder).name_of(gone[0].name)
    if is_recovery and has_pending_folder(folder):
        _LOG.warning("%d sink files of the last batch, such as '%s', were deleted since they were written", len(gone), name)
        return None, True
    return (
        SinkError(
            f"sink file '{name}' is committed, but it is gone",
            detail=f"neither this file nor '{gone[0].key}' exists, of {len(files)} files of the sink",
            hint="the driver must see the folder of the sink that workers write to; its sub-folder _pending must not be changed",
        ),
        True,
    )
