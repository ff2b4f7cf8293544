"""TCP source: rows pulled from a server that retains them until they are committed.

The server (such as the driver of the benchmarks, `headrace.bench.driver`) numbers the rows of each partition; a position is the
number of rows read from each. `prune` commits rows to the server after the batch that read them is committed in the checkpoint:
an interrupted batch can be read again, so rows are neither lost nor duplicated as long as the server lives.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.durable import replace_file
from headrace.connectors.source import RANGE_ROWS, Option, Position, Range, require_attached
from headrace.connectors.tcp_protocol import TcpConnection, borrow_connection
from headrace.errors import SourceError
from headrace.model.schema import Schema

_RESTARTED_HINT = "the server was restarted and has other rows; start with a new checkpoint"


class TcpSource:
    """A source that reads one stream of a TCP server as a consumer group; each group must have one reader only."""

    def __init__(self, address: str, stream: str, *, group: str = "headrace") -> None:
        """Create a source; it connects when its schema is first needed.

        `address` is 'host:port', `stream` the name of the stream on the server, and `group` the consumer group. Raises
        SourceError for an invalid address.
        """
        self._connection = TcpConnection(address)
        self._address, self._remote_stream, self._group = address, stream, group
        self._cached_description: dict[str, Any] | None = None
        self._stream, self._directory = "", None  # type: tuple[str, Path | None]

    @property
    def schema(self) -> Schema:
        """The columns, as the server describes them; raises SourceError if the server cannot be reached."""
        return Schema.parse(str(self._describe_stream()["schema"]))

    def attach(self, stream: str, directory: Path) -> None:
        """See `Source`; stores the identity of the server, to detect another server at the same address."""
        self._stream, self._directory = stream, Path(directory)
        identity_file, identity = self._directory / "server.json", self._describe_stream()["identity"]
        if not identity_file.exists():
            replace_file(identity_file, json.dumps({"identity": identity}).encode())
        if json.loads(identity_file.read_text())["identity"] != identity:
            raise SourceError(
                f"server '{self._address}' is not the one that stream '{stream}' was read from", hint=_RESTARTED_HINT
            )

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"rows": number of rows read from each partition}."""
        require_attached(self._stream, self._directory)
        starts, produced = self._read_progress(position)
        stops = level_partitions(starts, produced, max(1, limit_rows))
        if stops == starts:
            return [], position
        return [item for p, _ in enumerate(starts) for item in self._split_ranges(p, starts[p], stops[p])], {"rows": stops}

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        starts, produced = self._read_progress(position)
        return produced != starts

    def prune(self, position: Position) -> None:
        """Commit the rows before `position` to the server; if it cannot be reached, a later call commits them."""
        if position is not None:
            with contextlib.suppress(SourceError):  # the batch is committed and must not fail any more
                self._send_request("commit", positions=position["rows"])

    def definition(self) -> dict[str, Any]:
        """See `Source`."""
        return {"kind": "tcp", "address": self._address, "stream": self._remote_stream, "group": self._group}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _describe_stream(self) -> dict[str, Any]:
        if self._cached_description is None:
            answer = self._connection.send_request("describe")
            streams = answer["streams"]
            if self._remote_stream not in streams:
                raise SourceError(
                    f"server '{self._address}' has no stream '{self._remote_stream}'",
                    detail=f"streams: {', '.join(streams) or 'none'}",
                )
            self._cached_description = {**streams[self._remote_stream], "identity": answer["identity"]}
        return self._cached_description

    def _read_progress(self, position: Position) -> tuple[list[int], list[int]]:
        """Return the number of rows read from each partition, and the number of rows in each."""
        status = self._send_request("status")
        starts, produced = list(status["committed"] if position is None else position["rows"]), list(status["produced"])
        if len(starts) != len(produced) or any(start > stop for start, stop in zip(starts, produced, strict=True)):
            raise SourceError(
                f"server '{self._address}' has fewer rows than stream '{self._stream}' has read", hint=_RESTARTED_HINT
            )
        return starts, produced

    def _send_request(self, request: str, **arguments: Any) -> dict[str, Any]:
        return self._connection.send_request(request, stream=self._remote_stream, group=self._group, **arguments)

    def _split_ranges(self, partition: int, start: int, stop: int) -> list[Range]:
        options: dict[str, Option] = {"stream": self._remote_stream, "group": self._group, "partition": partition}
        cuts = [*range(start, stop, RANGE_ROWS), stop]
        return [Range(self._stream, "tcp", self._address, a, b, b - a, options) for a, b in pairwise(cuts)]


def level_partitions(starts: Sequence[int], produced: Sequence[int], limit: int) -> list[int]:
    """Return the end of the rows to read in each partition: about `limit` rows in total, least advanced partitions first.

    The partitions of a stream have similar event times; reading one far ahead would advance the watermark past the rows of the
    others.
    """
    low, high = min(starts), max(produced)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_clamp_stops(starts, produced, middle)) - sum(starts) <= limit:
            low = middle
        else:
            high = middle - 1
    stops = _clamp_stops(starts, produced, low)
    if stops == list(starts):  # the limit is below the number of partitions: read one more row of each
        return _clamp_stops(starts, produced, low + 1)
    return stops


def _clamp_stops(starts: Sequence[int], produced: Sequence[int], mark: int) -> list[int]:
    return [max(start, min(stop, mark)) for start, stop in zip(starts, produced, strict=True)]


def read_rows(wanted: Range, columns: Sequence[str]) -> pa.Table:
    """Return the columns of a range that `TcpSource.plan` planned; for workers."""
    options = wanted.options
    with borrow_connection(wanted.path) as connection:
        return connection.read(
            str(options["stream"]), int(options["partition"]), str(options["group"]), wanted.start, wanted.stop, columns
        )
