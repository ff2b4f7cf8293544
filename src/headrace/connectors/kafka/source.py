"""Kafka source: the driver plans exact ranges of offsets by partition, and workers read them.

A position is the next offset of each partition. It is in the log of batches, so a batch is read again exactly; there is no
consumer group that could move it, and nothing is committed to Kafka but figures for monitoring tools.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headrace.connectors.control_channel import ControlChannel
from headrace.connectors.formats import to_utc
from headrace.connectors.kafka.client_options import ClientOptions, check_options, resolve_options
from headrace.connectors.kafka.consumer_pool import get_pool
from headrace.connectors.kafka.control import TopicControl, make_unreachable_error
from headrace.connectors.kafka.librdkafka import load_library
from headrace.connectors.kafka.reader import METADATA
from headrace.connectors.message_formats import make_message_format
from headrace.connectors.skipped_rows import is_letter_topic, parse_dead_letter
from headrace.connectors.source import RANGE_ROWS, Option, Position, Range, require_attached
from headrace.errors import SchemaError, SourceError
from headrace.model.time import parse_duration
from headrace.model.types import TIMESTAMP, Schema, type_name
from headrace.storage.documents import get_document, put_document
from headrace.storage.store import Store

StartPosition = str | datetime | Mapping[int, int]

_TOPIC_FILE = "topic.json"
_ATTACH_SECONDS = 8.0
_UNKNOWN_MESSAGE_BYTES = float(1 << 20)  # what brokers accept by default
_TYPES = {"key": pa.string(), "headers": pa.string(), "timestamp": TIMESTAMP, "partition": pa.int32(), "offset": pa.int64()}
_LOST_HINT = "raise the retention of the topic, or drop the stream and create it again; on_lost='skip' goes on without them"
_RECREATED_HINT = "drop the stream and create it again, which reads the new topic from its start"


class KafkaSource:
    """A source that reads one topic of Kafka."""

    default_max_ahead = 86_400_000_000  # µs: rows of a live source should not come from the future
    default_watermark_by = "partition"

    def __init__(
        self,
        topic: str,
        *,
        brokers: str,
        schema: Schema | str,
        format: str = "json",  # noqa: A002 - the usual word
        format_options: Mapping[str, Option] | None = None,
        start: StartPosition = "earliest",
        key: str = "_key",
        headers: str = "_headers",
        timestamp: str = "_timestamp",
        partition: str = "_partition",
        offset: str = "_offset",
        options: ClientOptions | None = None,
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        stall_timeout: str = "10 seconds",
        on_error: str = "fail",
        dead_letter: str | None = None,
        on_lost: str = "fail",
        group: str | None = None,
    ) -> None:
        """Create a source; it connects when it is attached.

        - `topic`, `brokers`: the name of the topic, and "host:port" of one broker or several, with commas.
        - `schema`: the columns, such as "user_id INT, price DOUBLE, time TIMESTAMP"; those of messages by name.
        - `format`, `format_options`: how the bytes of messages are decoded; see the formats of messages.
        - `start`: where a new stream begins: "earliest", "latest", a time (a datetime, or ISO-8601 text), which counts for the
          timestamps of messages, or an offset for each partition, as a dict; "earliest" holds for partitions that it leaves out.
          Partitions that are added to the topic later are read from their first message.
        - `key`, `headers`, `timestamp`, `partition`, `offset`: the names of the columns that have them, if the schema declares
          these: key STRING, headers STRING (a JSON object), timestamp TIMESTAMP, partition INT, offset BIGINT.
        - `options`: settings of librdkafka, such as {"security.protocol": "SASL_SSL", "sasl.password": "env:KAFKA_PASSWORD"}. A
          secret must be a reference: env:NAME or file:PATH, which is resolved in the driver and in each worker.
        - `max_rows_per_batch`: the most messages of a micro-batch, shared fairly by the partitions.
        - `max_bytes_per_batch`: about how many bytes the values of a micro-batch have at most, by the mean of recent messages;
          the first micro-batch of a session takes messages to be of 1 MiB.
        - `stall_timeout`: after how long without any progress a partition is an error, and tried again; slow storage needs more.
        - `on_error`: "fail" degrades the stream at a message that does not fit the schema, "skip_row" counts it, and goes on.
        - `dead_letter`: with "skip_row", where such messages are kept: "jsonl:DIR", or "kafka:TOPIC" of the same brokers.
        - `on_lost`: what to do if messages were deleted before they were read: "fail" degrades the stream, "skip" counts them.
        - `group`: a consumer group to which read offsets are committed for monitoring tools. Nothing reads them.

        Raises SchemaError or SourceError for an invalid argument.
        """
        load_library()
        self._topic, self._brokers, self._start = topic, brokers, _check_start(start)
        self.schema = Schema.parse(schema) if isinstance(schema, str) else schema
        _check_choice("on_error", on_error, ("fail", "skip_row"))
        _check_choice("on_lost", on_lost, ("fail", "skip"))
        limits = {"max_rows_per_batch": max_rows_per_batch, "max_bytes_per_batch": max_bytes_per_batch}
        for name, limit in limits.items():
            if limit is not None and limit < 1:
                raise SchemaError(f"{name} is {limit}, but must be positive")
        metadata = dict(zip(METADATA, (key, headers, timestamp, partition, offset), strict=True))
        _check_metadata(self.schema, metadata)
        settings = dict(format_options or {})
        names = {name.lower() for name in metadata.values()}
        values = Schema(tuple(field for field in self.schema if field.name.lower() not in names))
        if len(values):
            make_message_format(format, values, settings)
        self._max_rows, self._max_bytes, self._on_lost, self._group = max_rows_per_batch, max_bytes_per_batch, on_lost, group
        self._message_bytes: float | None = None  # the mean of recent messages
        self._client: dict[str, Option] = {**check_options(options or {}), "bootstrap.servers": brokers}
        self._range_options: dict[str, Option] = {
            **{f"column.{kind}": name for kind, name in metadata.items()},
            "client": json.dumps(self._client, sort_keys=True),
            "format": format,
            "format_options": json.dumps({**settings, "on_error": on_error}, sort_keys=True),
            "on_error": on_error,
            "stall_seconds": _parse_stall_timeout(stall_timeout),
            "dead_letter": _parse_dead_letter(dead_letter, on_error, topic),
        }
        self._channel = ControlChannel(self._connect, partial(make_unreachable_error, topic))
        self._commits = ControlChannel(self._connect, partial(make_unreachable_error, topic))  # they may be slow: apart
        self._stream, self._store = "", None  # type: tuple[str, Store | None]
        self._known: dict[str, Any] = {}  # the topic as it was when the stream was created: its id, and where to start
        self._unreported: dict[int, int] = {}  # offsets that the group does not have yet

    @property
    def dead_letter(self) -> str:
        """The folder or URL of dead letters; empty without one."""
        return str(self._range_options["dead_letter"])

    def attach(self, stream: str, store: Store) -> None:
        """See `Source`; stores where the stream starts, and which topic it is. A known stream attaches without the brokers."""
        if store.find_size(_TOPIC_FILE) is None:
            put_document(store, _TOPIC_FILE, self._find_start())
        self._known = get_document(store, _TOPIC_FILE)
        self._stream, self._store = stream, store

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"offsets": next offset by partition, "lost": messages that were deleted unread}."""
        starts, newest, lost = self._read_progress(position)
        limit = limit_rows if self._max_rows is None else min(limit_rows, self._max_rows)
        limit = (
            limit
            if self._max_bytes is None
            else min(limit, int(self._max_bytes / (self._message_bytes or _UNKNOWN_MESSAGE_BYTES)))
        )
        taken = share_rows({p: newest[p] - start for p, start in starts.items()}, max(1, limit))
        after = {p: start + taken[p] for p, start in starts.items()}
        if position is not None and after == _parse_offsets(position):
            return [], position
        ranges = [item for p, start in starts.items() for item in self._split_ranges(p, start, after[p])]
        return ranges, {"offsets": _name_partitions(after), **({"lost": _name_partitions(lost)} if lost else {})}

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        self._report_offsets()
        starts, newest, _ = self._read_progress(position)
        return any(newest[p] > start for p, start in starts.items())

    def list_partitions(self, position: Position) -> tuple[int, ...]:
        """See `Source`."""
        return () if position is None else tuple(_parse_offsets(position))

    def count_lag(self, position: Position) -> int | None:
        """See `Source`."""
        lags = self.count_partition_lag(position)
        return None if lags is None else sum(lags.values())

    def count_partition_lag(self, position: Position) -> dict[int, int] | None:
        """Return how many messages of each partition are not read yet, as of the last answer of the brokers."""
        status = self._channel.get_last_answer("status")
        if status is None:
            return None
        starts = self._starts_of(position, status)
        return {p: max(0, end - starts.get(p, end)) for p, end in status["newest"].items()}

    def prune(self, *positions: Position) -> None:
        """See `Source`; commits offsets to the group, if there is one."""
        if self._group is not None and None not in positions:
            offsets = [_parse_offsets(position) for position in positions]
            self._unreported = {p: min(o.get(p, start) for o in offsets) for p, start in offsets[0].items()}
            self._report_offsets()

    def record_message_sizes(self, messages: int, size: int) -> None:
        """See `Source`; a greater mean size counts at once, a smaller one by half."""
        mean, earlier = max(1.0, size / messages), self._message_bytes or 0.0
        self._message_bytes = mean if mean > earlier else (mean + earlier) / 2

    def _report_offsets(self) -> None:
        """Commit offsets to the group, unless an earlier commit has no answer yet. A failure changes nothing but figures."""
        if self._unreported:
            with contextlib.suppress(SourceError):
                if self._commits.post_request("commit", group=self._group, offsets=self._unreported):
                    self._unreported = {}

    def count_lost(self, position: Position) -> dict[int, int]:
        """See `Source`: what retention has deleted, which is an error without on_lost='skip'."""
        return {} if position is None else _parse_partitions(position.get("lost", {}))

    def definition(self) -> dict[str, Any]:
        """See `Source`: the topic whose offsets are stored; brokers, registry, writer schema, start and policies may change."""
        return {"kind": "kafka", "topic": self._topic}

    @property
    def client_options(self) -> dict[str, Option]:
        """The settings of the client with the brokers, for dead letters; secrets are references."""
        return dict(self._client)

    def detach(self) -> None:
        """See `Source`."""
        self._stream, self._store = "", None

    def close(self) -> None:
        """Close the connections, and the idle consumers of this process: a session in this process has read with them."""
        get_pool().close_idle()
        self._channel.close()
        self._commits.close()

    def _connect(self) -> TopicControl:
        return TopicControl(self._topic, resolve_options(self._client))

    def _request(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer, silence = self._channel.send_request(name, patience=_ATTACH_SECONDS, **arguments)
        if answer is None or silence is not None:
            raise silence or make_unreachable_error(self._topic, "no answer")
        return answer

    def _find_start(self) -> dict[str, Any]:
        status = self._request("status")
        oldest, newest = status["oldest"], status["newest"]
        if self._start == "earliest":
            starts = oldest
        elif self._start == "latest":
            starts = newest
        elif isinstance(self._start, str):
            milliseconds = int(datetime.fromisoformat(self._start).timestamp() * 1000)
            starts = self._request("offsets_at", milliseconds=milliseconds)["offsets"]
        else:
            starts = {p: self._start.get(p, start) for p, start in oldest.items()}
            self._check_offsets(self._start, oldest, newest)
        return {"topic_id": status["topic_id"], "starts": _name_partitions(starts)}

    def _check_offsets(self, given: Mapping[int, int], oldest: Mapping[int, int], newest: Mapping[int, int]) -> None:
        for p, offset in given.items():
            if p not in oldest or not oldest[p] <= offset <= newest[p]:
                existing = ", ".join(f"{q}: {oldest[q]} to {newest[q]}" for q in oldest)
                raise SourceError(f"topic '{self._topic}' has no offset {offset} in partition {p}", detail=f"offsets: {existing}")

    def _read_progress(self, position: Position) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Return the next offset and the last offset + 1 of each partition, and how many messages were lost so far.

        While the brokers are silent, these are the offsets of the last answer; raises SourceError if they are read already.
        """
        require_attached(self._stream, self._store)
        status, silence = self._channel.send_request("status")
        if status is None:
            assert silence is not None
            raise silence
        starts, newest = self._starts_of(position, status), dict(status["newest"])
        lost = self.count_lost(position)
        self._check_topic(starts, status)
        for p, start in starts.items():
            gone = status["oldest"][p] - start
            if gone > 0:
                lost[p] = lost.get(p, 0) + self._skip_lost(p, start, gone)
                starts[p] = start + gone
        if silence is not None and all(newest[p] == start for p, start in starts.items()):
            raise silence
        return starts, newest, lost

    def _starts_of(self, position: Position, status: Mapping[str, Any]) -> dict[int, int]:
        """Return the next offset of each partition; a partition that is new is read from its first message."""
        known = self._known["starts"] if position is None else position["offsets"]
        return {p: int(known.get(str(p), oldest)) for p, oldest in status["oldest"].items()} | {
            int(p): offset for p, offset in known.items()
        }

    def _check_topic(self, starts: Mapping[int, int], status: Mapping[str, Any]) -> None:
        """Raise SourceError if this is not the topic that the stream was created for."""
        reason = ""
        if status["topic_id"] != self._known["topic_id"]:
            reason = f"its id is {status['topic_id']}, and was {self._known['topic_id']}"
        for p, start in starts.items():
            if p not in status["newest"]:
                reason = reason or f"partition {p} does not exist any more"
            elif status["newest"][p] < start:
                reason = reason or f"partition {p} ends at offset {status['newest'][p]}, and was read up to {start}"
        if reason:
            message = f"Kafka topic '{self._topic}' was deleted and created again"
            raise SourceError(message, detail=reason, hint=_RECREATED_HINT)

    def _skip_lost(self, partition: int, start: int, gone: int) -> int:
        """Return how many messages are skipped; raises SourceError if the policy is to fail."""
        if self._on_lost == "skip":
            return gone
        raise SourceError(
            f"{gone:,} messages of partition {partition} of Kafka topic '{self._topic}' were deleted before they were read",
            detail=f"offsets {start} to {start + gone - 1}",
            hint=_LOST_HINT,
        )

    def _split_ranges(self, partition: int, start: int, stop: int) -> list[Range]:
        options = {**self._range_options, "partition": partition, "topic_id": self._known["topic_id"]}
        cuts = [*range(start, stop, RANGE_ROWS), stop]
        return [Range(self._stream, "kafka", self._topic, a, b, b - a, options) for a, b in pairwise(cuts)]


def share_rows(available: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return how many rows of each partition to take: all if they are at most `limit`, else equal shares of those that have more.

    Each partition with rows gives at least one, so that none looks idle.
    """
    taken, rest = dict.fromkeys(available, 0), limit
    ordered = sorted(available, key=lambda p: (available[p], p))
    for index, p in enumerate(ordered):
        taken[p] = min(available[p], max(1, rest // (len(ordered) - index)))
        rest = max(0, rest - taken[p])
    return taken


def _check_start(start: StartPosition) -> str | dict[int, int]:
    if isinstance(start, Mapping):
        return {int(p): int(offset) for p, offset in start.items()}
    if start in ("earliest", "latest"):
        return str(start)
    try:
        return to_utc(start).astimezone(UTC).isoformat()
    except ValueError as error:
        hint = "write earliest, latest, a time such as 2026-01-01T00:00:00Z, or offsets by partition"
        raise SchemaError(f"invalid start '{start}'", hint=hint) from error


def _parse_stall_timeout(text: str) -> float:
    seconds = parse_duration(text) / 1e6
    if seconds < 1:
        raise SchemaError(f"stall_timeout is '{text}', which is less than a second")
    return seconds


def _parse_dead_letter(target: str | None, on_error: str, topic: str) -> str:
    """Return kafka:TOPIC, or the path of a folder; an empty text without dead letters."""
    if target is None or not is_letter_topic(target):
        return parse_dead_letter(target, on_error)
    if on_error != "skip_row":
        raise SchemaError(f"dead_letter needs on_error='skip_row', but on_error is '{on_error}'")
    if target.partition(":")[2].strip() in {"", topic}:
        raise SchemaError(f"invalid dead_letter '{target}'", hint="write kafka:TOPIC, with another topic than that of the stream")
    return target


def _check_metadata(schema: Schema, names: Mapping[str, str]) -> None:
    for kind, name in names.items():
        field = schema.find(name)
        if field is not None and field.type != _TYPES[kind]:
            wanted = type_name(_TYPES[kind])
            raise SchemaError(f"column '{name}' has the {kind} of messages, which is {wanted}, not {type_name(field.type)}")


def _check_choice(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SchemaError(f"unknown {what} '{value}'", detail=f"one of: {', '.join(allowed)}")


def _name_partitions(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(p): number for p, number in numbers.items()}


def _parse_partitions(numbers: Mapping[str, int]) -> dict[int, int]:
    return {int(p): int(number) for p, number in numbers.items()}


def _parse_offsets(position: Position) -> dict[int, int]:
    return _parse_partitions(position["offsets"])
