"""Dead letters that go to a topic of Kafka: the driver sends those of committed batches, in threads of their own.

Each stream sends its batches in order, in transactions that contain the mark of the newest one, as sinks do
(`connectors/sinks/destination.py`): after a crash, what was sent is not sent again. Brokers that do not answer hold no batch up:
files that are not sent yet stay named by the manifest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.connectors import PendingFile
from headrace.connectors.letter_topic import LetterSink, delete_letters, parse_batch, read_letters
from headrace.connectors.sinks.destination import Destination
from headrace.connectors.source import Option
from headrace.errors import SinkError
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.fault_points import reach_fault_point

_PATIENCE_SECONDS = 1.0  # how long a batch waits for its dead letters to be sent
_CLOSE_SECONDS = 10.0
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.25, 30.0


@dataclass(slots=True)
class _Transmission:
    """Files that a thread sends; it sets `error`, and then `ended`."""

    files: tuple[PendingFile, ...]
    client: Mapping[str, Option] | None
    ended: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


@dataclass(slots=True)
class _Sender:
    """What sends the dead letters of a stream: the connections by topic, each with its mark, and the last failures."""

    connections: dict[str, tuple[Destination, int]] = field(default_factory=dict)
    running: _Transmission | None = None
    error: SinkError | None = None
    failures: int = 0
    retry_at: float = 0.0


class LetterPublisher:
    """Sends the dead letters of the streams of one checkpoint. Callers serialize calls."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Take the checkpoint; nothing is connected yet."""
        self._checkpoint = checkpoint
        self._senders: dict[str, _Sender] = {}
        self._recovered: frozenset[str] = frozenset()

    def recover(self, files: Sequence[PendingFile]) -> None:
        """Take the files that the newest manifest names: those of them that are gone were sent before the restart."""
        self._recovered = frozenset(file.key for file in files)

    def publish(
        self, stream: str, files: Sequence[PendingFile], client: Mapping[str, Option] | None = None
    ) -> tuple[tuple[PendingFile, ...], SinkError | None]:
        """Send the files of a stream; return those that are not sent yet, and why, unless they are just being sent.

        `client` are the present settings of the stream, if it has a source.
        """
        sender = self._senders.setdefault(stream, _Sender())
        left = tuple(files)
        while left:
            if sender.running is None and time.monotonic() < sender.retry_at:
                return left, sender.error
            patience = 0.0
            if sender.running is None:
                sender.running, patience = self._start(stream, sender, _Transmission(left, client)), _PATIENCE_SECONDS
            if not sender.running.ended.wait(patience):
                return left, None
            sent, sender.running = sender.running, None
            if sent.error is not None:
                self._record_failure(stream, sender, sent.error)
                return left, sender.error
            sender.error, sender.failures, sender.retry_at = None, 0, 0.0
            left = tuple(file for file in left if file not in sent.files)
        return (), None

    def is_due(self, stream: str) -> bool:
        """Return whether `publish` would do anything for files that are left: none are being sent, and no delay is running."""
        sender = self._senders.get(stream)
        if sender is None:
            return True
        return sender.running.ended.is_set() if sender.running is not None else time.monotonic() >= sender.retry_at

    def _start(self, stream: str, sender: _Sender, transmission: _Transmission) -> _Transmission:
        arguments = (self._send, stream, sender, transmission)
        threading.Thread(target=copy_context().run, args=arguments, name=f"headrace-letters-{stream}", daemon=True).start()
        return transmission

    def _record_failure(self, stream: str, sender: _Sender, error: Exception) -> None:
        delay = min(_LAST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** min(sender.failures, 30))
        sender.failures, sender.retry_at = sender.failures + 1, time.monotonic() + delay
        detail = f"{error.message}: {error.detail}" if isinstance(error, SinkError) else f"{type(error).__name__}: {error}"
        sender.error = SinkError(f"dead letters of stream '{stream}' cannot be sent", detail=detail)

    def _send(self, stream: str, sender: _Sender, transmission: _Transmission) -> None:
        """Send files, each topic in one transaction, and delete them: what was sent and not deleted is known by its mark."""
        try:
            by_target = self._read_files(transmission)
            for target, (sink, letters) in by_target.items():
                self._send_to(stream, sender, target, sink, letters)
            reach_fault_point(self._checkpoint.location, "letters-sent")
            delete_letters(transmission.files)
        except Exception as error:  # noqa: BLE001  libraries raise anything for a server that does not answer
            transmission.error = error
            while sender.connections:
                sender.connections.popitem()[1][0].close()
        finally:
            transmission.ended.set()

    def _read_files(self, transmission: _Transmission) -> dict[str, tuple[LetterSink, list[tuple[int, pa.Table]]]]:
        """Return the topics of files, with the dead letters for each by batch; raises SinkError if a file is gone."""
        by_target: dict[str, tuple[LetterSink, list[tuple[int, pa.Table]]]] = {}
        for file in transmission.files:
            content = read_letters(file, transmission.client)
            if content is not None:
                by_target.setdefault(str(content[0].to_json()), (content[0], []))[1].append((parse_batch(file), content[1]))
            elif file.key not in self._recovered:
                raise SinkError(f"file '{file.folder}/{file.key}' with dead letters is gone")
        return by_target

    def _send_to(
        self, stream: str, sender: _Sender, target: str, sink: LetterSink, letters: Sequence[tuple[int, pa.Table]]
    ) -> None:
        if target not in sender.connections:
            self._checkpoint.check_owner()
            connection = sink.connect(f"{self._checkpoint.identity[:16]}-letters-{stream}")
            sender.connections[target] = (connection, -1)  # closed after a failure
            mark = connection.read_mark()
            sender.connections[target] = (connection, -1 if mark is None else mark)
        connection, sent_batch = sender.connections[target]
        tables = [table for batch, table in letters if batch > sent_batch]
        if tables:
            rows = pa.concat_tables(tables)
            newest = max(batch for batch, _ in letters)
            connection.publish(newest, rows.append_column("stream", pa.array([stream] * rows.num_rows, pa.string())))
            sender.connections[target] = (connection, newest)

    def close(self) -> None:
        """Wait a while for what is being sent, and close the connections."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        for sender in self._senders.values():
            if sender.running is None or sender.running.ended.wait(max(0.0, deadline - time.monotonic())):
                while sender.connections:
                    sender.connections.popitem()[1][0].close()
