"""The sources of a session, by stream; one source object may serve several streams.

Streams that share a source object share its folder in the checkpoint, and each has its own position. The source is attached once,
under the name of the stream that was declared first: its owner. The folder of any other stream holds `shared.json`, which names
the owner, so that a recovered session finds the rows whatever the order of its declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.connectors import Position, Range, Source
from headrace.engine.batch_job import MapReport
from headrace.errors import CheckpointError, log_internal_error
from headrace.runtime.cleanup import run_all_steps
from headrace.runtime.idle_partitions import IdlePartitions
from headrace.runtime.source_health import SourceHealth, to_source_error
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.documents import get_document, put_document
from headrace.storage.store import Store

_POINTER_FILE = "shared.json"


class AttachedSources(Mapping[str, Source]):
    """The source of each declared stream. Callers serialize all calls."""

    def __init__(self, checkpoint: Checkpoint, health: SourceHealth | None = None) -> None:
        """Create an empty mapping for the streams of a checkpoint."""
        self._checkpoint, self.health = checkpoint, health or SourceHealth()
        self._sources: dict[str, Source] = {}
        self._owners: dict[str, str] = {}
        self._recovered: set[str] = set()
        self.idle_partitions = IdlePartitions()

    def __getitem__(self, stream: str) -> Source:
        """Return the source of a stream."""
        return self._sources[stream]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the streams, in order of declaration."""
        return iter(self._sources)

    def __len__(self) -> int:
        """Return the number of streams."""
        return len(self._sources)

    def claim_folder(self, stream: str, source: Source, *, recovered: bool) -> tuple[str, Store] | None:
        """Return the stream and the store that a source is to be attached with; None if another stream already reads it.

        The caller attaches the source, which may take long, and calls `add` afterwards. `recovered` says whether the checkpoint
        has the stream. Raises CheckpointError if the checkpoint does not have the same streams share their sources.
        """
        if recovered:
            self._recovered.add(stream)
        sibling = self.find_sibling(source)
        if sibling is not None:
            self._share_folder(stream, sibling)
            return None
        owner = self._find_owner(stream)
        rival = next((name for name in self._sources if self._find_owner(name) == owner), None)
        if rival is not None and (recovered or owner == stream):
            raise CheckpointError(
                f"streams '{stream}' and '{rival}' share one source in this checkpoint",
                hint="pass the same source object to both, or start with a new checkpoint",
            )
        if rival is not None:  # an earlier declaration of this stream was refused
            self._write_owner(stream, stream)
            owner = stream
        return owner, self._source_store(owner)

    def add(self, stream: str, source: Source) -> None:
        """Let a stream read a source that is attached."""
        self._sources[stream] = source
        self.health.forget(stream)

    def delete_folder(self, stream: str, declared: Iterable[str]) -> None:
        """Delete the folder of a stream that is being dropped, and the one that it shares, unless another stream uses them."""
        owner = self._find_owner(stream)
        others = [name for name in declared if name != stream]
        used = {*others, *(self._find_owner(name) for name in others)}
        for name in {stream, owner} - used:
            self._checkpoint.delete_source_folder(name)

    def drop(self, stream: str) -> None:
        """Forget a dropped stream; detach and close its source, unless another stream reads it."""
        source = self._sources.get(stream)
        self._sources = {name: other for name, other in self._sources.items() if name != stream}
        self._owners.pop(stream, None)
        self._recovered.discard(stream)
        self.idle_partitions.forget(stream)
        self.health.forget(stream)
        if source is not None and self.find_sibling(source) is None:
            closing = [getattr(source, step, None) for step in ("detach", "close")]
            run_all_steps([step for step in closing if step is not None])

    def list_files(self, stream: str) -> tuple[str, ...]:
        """Return the keys of the bookkeeping files of a stream's source, without rows: recovery depends on all of them."""
        keys = self._checkpoint.list_source_files(stream)
        return tuple(key for key in keys if key.endswith((".json", ".jsonl")) and not key.rpartition("/")[2][0].isdigit())

    @staticmethod
    def verify(source: Source, position: Position) -> None:
        """Check that an attached source reaches the position of a recovered stream; raises CheckpointError if it does not."""
        verify = getattr(source, "verify", None)
        if verify is not None and position is not None:
            verify(position)

    def find_sibling(self, source: Source) -> str | None:
        """Return a stream that reads this source object, or None."""
        return next((name for name, other in self._sources.items() if other is source), None)

    def plan(self, stream: str, position: Position, limit_rows: int) -> tuple[list[Range], Position] | None:
        """Return the ranges of new rows of a stream and the position after them, as `Source.plan` does.

        Return None for a degraded stream: its source fails now, or is not due after an earlier failure. Whatever a source raises
        is the failure of its stream alone.
        """
        if not self.health.is_due(stream):
            return None
        try:
            ranges, after = self._sources[stream].plan(position, limit_rows)
        except Exception as problem:  # noqa: BLE001
            self.health.record_failure(stream, to_source_error(stream, problem))
            return None
        return [item if item.stream == stream else replace(item, stream=stream) for item in ranges], after

    def has_new_rows(self, stream: str, position: Position) -> bool:
        """Return whether a stream has new rows that can be read, as `Source.pending` does; False for a degraded stream."""
        if not self.health.is_due(stream):
            return False
        try:
            is_pending = self._sources[stream].pending(position)
        except Exception as problem:  # noqa: BLE001
            self.health.record_failure(stream, to_source_error(stream, problem))
            return False
        if not is_pending:
            self.health.record_success(stream)
        return is_pending

    def count_partition_lag(self, stream: str, position: Position) -> dict[int, int]:
        """Return how many rows of each partition are not read yet, as far as the source of a stream knows."""
        count = getattr(self._sources.get(stream), "count_partition_lag", None)
        return {} if count is None or stream in self.health.failures else dict(count(position) or {})

    def count_lost(self, stream: str, position: Position) -> dict[int, int]:
        """Return how many rows of each partition were deleted before they were read."""
        count = getattr(self._sources.get(stream), "count_lost", None)
        return {} if count is None else dict(count(position))

    def list_partitions(self, stream: str, position: Position) -> tuple[int, ...]:
        """Return the partitions that a stream has at a position; the source must be one with partitions."""
        return tuple(self._sources[stream].list_partitions(position))  # type: ignore[attr-defined]

    def count_lag(self, stream: str, position: Position) -> int | None:
        """Return how many rows of a stream are not read yet; None if its source does not know, or cannot be read."""
        count = getattr(self._sources.get(stream), "count_lag", None)
        if count is None or stream in self.health.failures:
            return None
        try:
            lag: int | None = count(position)
        except Exception as problem:  # noqa: BLE001  a figure for people: the stream goes on without it
            log_internal_error(f"the lag of stream '{stream}' is not known", problem)
            return None
        return lag

    def record_message_sizes(self, reports: Sequence[MapReport]) -> None:
        """Tell sources how many messages and bytes a committed batch has read, as the measure for later batches."""
        for stream, source in self._sources.items():
            record = getattr(source, "record_message_sizes", None)
            messages = sum(report.message_counts.get(stream, 0) for report in reports)
            if record is not None and messages:
                record(messages, sum(report.message_bytes.get(stream, 0) for report in reports))

    def prune(self, positions: Mapping[str, Position]) -> None:
        """Release the rows that all streams of a source have read; `positions` are those of all streams, attached or not.

        The source of a degraded stream releases them later; whatever a source raises degrades its stream.
        """
        by_owner: dict[str, list[Position]] = {}
        for stream, position in positions.items():
            by_owner.setdefault(self._find_owner(stream), []).append(position)
        degraded = self.health.failures
        sources = {self._find_owner(stream): (stream, source) for stream, source in self._sources.items()}
        for owner, (stream, source) in sources.items():
            prune = getattr(source, "prune", None)
            if prune is None or stream in degraded:
                continue
            try:
                prune(*by_owner[owner])
            except Exception as problem:  # noqa: BLE001  the batch is committed and must not fail any more
                self.health.record_failure(stream, to_source_error(stream, problem))

    def _share_folder(self, stream: str, sibling: str) -> None:
        owner = self._find_owner(sibling)
        if self._find_owner(stream) == owner:
            return
        if stream in self._recovered or self._has_own_data(stream):
            first = "" if sibling in self._recovered else f", or declare stream '{stream}' before stream '{sibling}'"
            raise CheckpointError(
                f"stream '{stream}' has a source of its own in this checkpoint",
                detail=f"the source object is that of stream '{sibling}'",
                hint=f"make a second source object for it{first}",
            )
        self._write_owner(stream, owner)

    def _has_own_data(self, stream: str) -> bool:
        store = self._source_store(stream)
        return bool(store.list_folders("")) or any(key != _POINTER_FILE for key in store.list(""))

    def _find_owner(self, stream: str) -> str:
        """Return the stream whose folder the source of a stream uses."""
        if stream not in self._owners:
            store = self._source_store(stream)
            has_pointer = store.find_size(_POINTER_FILE) is not None
            self._owners[stream] = get_document(store, _POINTER_FILE)["stream"] if has_pointer else stream
        return self._owners[stream]

    def _write_owner(self, stream: str, owner: str) -> None:
        if owner == stream:
            self._source_store(stream).delete(_POINTER_FILE)
        else:
            put_document(self._source_store(stream), _POINTER_FILE, {"stream": owner})
        self._owners[stream] = owner

    def _source_store(self, stream: str) -> Store:
        return self._checkpoint.open_source_store(stream)
