"""The server side of `headrace.connectors.tcp_protocol`, one connection at a time.

In addition to the requests of that protocol, the runner uses three:

| request | arguments | answer |
|---|---|---|
| start | rate: a RateScript, rows/s over all streams, or null | the driver produces rows at this rate from `now` on |
| totals | | now, produced, read, committed over all streams; overflowed, dropped, served_bytes |
| log | | series, pulls, marks: see `DriverLog` |

An invalid request is answered with its error; the connection stays open until the consumer closes it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.bench.hub import DriverHub
from headrace.bench.rate import RateScript
from headrace.errors import HeadraceError

_Arguments: TypeAlias = Mapping[str, Any]
_MAX_REQUEST_BYTES = 1 << 20  # longest accepted request
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # end-of-stream marker of the Arrow IPC format


class DriverConnection:
    """One connection of a consumer or of the runner."""

    def __init__(self, hub: DriverHub, sock: socket.socket) -> None:
        """Own the socket; `run` serves it."""
        self._hub, self._socket = hub, sock

    def run(self) -> None:
        """Answer requests until the peer disconnects."""
        with self._socket, self._socket.makefile("rb") as requests:
            while (line := requests.readline(_MAX_REQUEST_BYTES)).endswith(b"\n"):
                answer = self._answer_request(line)
                if isinstance(answer, _ReadAnswer):
                    answer.send(self._socket)
                else:
                    self._socket.sendall(json.dumps(answer).encode() + b"\n")

    def _answer_request(self, line: bytes) -> _Answer:
        try:
            request = json.loads(line)
            return _find_handler(request.get("request"))(self._hub, request)
        except HeadraceError as error:
            return {"error": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return {"error": f"invalid request: {error!r}"}


class _ReadAnswer:
    """The answer to a read request; validated on construction, so that an error can still be sent as the answer."""

    def __init__(self, hub: DriverHub, request: _Arguments) -> None:
        self._hub, self._stream = hub, hub.get_stream(request["stream"])
        self._group, self._partition = str(request["group"]), int(request["partition"])
        self._start, self._stop = int(request["start"]), int(request["stop"])
        self._schema = self._stream.project_schema(request.get("columns"))
        times = self._stream.queue.take(self._group, self._partition, self._start, self._stop)
        self._batches = self._stream.read_batches(self._partition, self._start, times, self._schema)

    def send(self, sock: socket.socket) -> None:
        schema_message = self._schema.serialize()
        size = schema_message.size + sum(map(pa.ipc.get_record_batch_size, self._batches)) + len(_ARROW_END)
        sock.sendall(json.dumps({"bytes": size}).encode() + b"\n" + schema_message.to_pybytes())
        for batch in self._batches:
            sock.sendall(batch.serialize())
        sock.sendall(_ARROW_END)
        self._hub.count_served_bytes(size)
        self._stream.queue.record_read(self._group, self._partition, self._start, self._stop, self._hub.now_us())


def _describe_streams(hub: DriverHub, _: _Arguments) -> dict[str, Any]:
    streams = {
        name: {"schema": stream.spec.schema.to_ddl(), "time": stream.spec.time_column, "partitions": stream.spec.partitions}
        for name, stream in hub.streams.items()
    }
    return {"identity": hub.identity, "streams": streams}


def _start_rate(hub: DriverHub, request: _Arguments) -> dict[str, Any]:
    rate = request["rate"]
    return {"now": hub.start(None if rate is None else RateScript.from_json(rate))}


def _report_progress(hub: DriverHub, request: _Arguments) -> dict[str, Any]:
    begin = request.get("from", "oldest")
    if begin not in {"oldest", "now"}:
        raise HeadraceError(f"invalid start position '{begin}'", hint='use "oldest" or "now"')
    progress = hub.get_stream(request["stream"]).queue.get_progress(str(request["group"]), from_now=begin == "now")
    return {"produced": progress.produced, "read": progress.read, "committed": progress.committed, **hub.get_health()}


def _commit_positions(hub: DriverHub, request: _Arguments) -> dict[str, Any]:
    positions = [int(position) for position in request["positions"]]
    hub.get_stream(request["stream"]).queue.commit(str(request["group"]), positions)
    return {}


def _remove_group(hub: DriverHub, request: _Arguments) -> dict[str, Any]:
    hub.get_stream(request["stream"]).queue.remove_group(str(request["group"]), hub.now_us())
    return {}


_Answer: TypeAlias = dict[str, Any] | _ReadAnswer
_HANDLERS: Mapping[str, Callable[[DriverHub, _Arguments], _Answer]] = {
    "describe": _describe_streams,
    "status": _report_progress,
    "read": _ReadAnswer,
    "commit": _commit_positions,
    "leave": _remove_group,
    "start": _start_rate,
    "totals": lambda hub, _: hub.get_totals(),
    "log": lambda hub, _: hub.get_log(),
}


def _find_handler(kind: object) -> Callable[[DriverHub, _Arguments], _Answer]:
    if not isinstance(kind, str) or kind not in _HANDLERS:
        raise HeadraceError(f"unknown request '{kind}'", detail=f"requests: {', '.join(_HANDLERS)}")
    return _HANDLERS[kind]
