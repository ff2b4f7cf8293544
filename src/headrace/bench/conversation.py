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

from headrace.bench.hub import Hub
from headrace.bench.rate import RateScript
from headrace.errors import HeadraceError

_Arguments: TypeAlias = Mapping[str, Any]
_LONGEST = 1 << 20  # longest accepted request
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # end-of-stream marker of the Arrow IPC format


class Conversation:
    """One connection of a consumer or of the runner."""

    def __init__(self, hub: Hub, sock: socket.socket) -> None:
        """Own the socket; `run` serves it."""
        self._hub, self._socket = hub, sock

    def run(self) -> None:
        """Answer requests until the peer disconnects."""
        with self._socket, self._socket.makefile("rb") as requests:
            while (line := requests.readline(_LONGEST)).endswith(b"\n"):
                answer = self._answer(line)
                if isinstance(answer, _Rows):
                    answer.send(self._socket)
                else:
                    self._socket.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, line: bytes) -> _Answer:
        try:
            request = json.loads(line)
            return _handler(request.get("request"))(self._hub, request)
        except HeadraceError as error:
            return {"error": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return {"error": f"invalid request: {error!r}"}


class _Rows:
    """The answer to a read request; validated on construction, so that an error can still be sent as the answer."""

    def __init__(self, hub: Hub, request: _Arguments) -> None:
        self._hub, self._stream = hub, hub.stream(request["stream"])
        self._group, self._partition = str(request["group"]), int(request["partition"])
        self._start, self._stop = int(request["start"]), int(request["stop"])
        self._schema = self._stream.schema(request.get("columns"))
        times = self._stream.queue.take(self._group, self._partition, self._start, self._stop)
        self._batches = self._stream.batches(self._partition, self._start, times, self._schema)

    def send(self, sock: socket.socket) -> None:
        schema_message = self._schema.serialize()
        size = schema_message.size + sum(map(pa.ipc.get_record_batch_size, self._batches)) + len(_END)
        sock.sendall(json.dumps({"bytes": size}).encode() + b"\n" + schema_message.to_pybytes())
        for batch in self._batches:
            sock.sendall(batch.serialize())
        sock.sendall(_END)
        self._hub.served(size)
        self._stream.queue.took(self._group, self._partition, self._start, self._stop, self._hub.now())


def _describe(hub: Hub, _: _Arguments) -> dict[str, Any]:
    streams = {
        name: {"schema": stream.spec.schema.to_ddl(), "time": stream.spec.time, "partitions": stream.spec.partitions}
        for name, stream in hub.streams.items()
    }
    return {"identity": hub.identity, "streams": streams}


def _start(hub: Hub, request: _Arguments) -> dict[str, Any]:
    rate = request["rate"]
    return {"now": hub.start(None if rate is None else RateScript.from_json(rate))}


def _status(hub: Hub, request: _Arguments) -> dict[str, Any]:
    begin = request.get("from", "oldest")
    if begin not in {"oldest", "now"}:
        raise HeadraceError(f"invalid start position '{begin}'", hint='use "oldest" or "now"')
    progress = hub.stream(request["stream"]).queue.progress(str(request["group"]), from_now=begin == "now")
    return {"produced": progress.produced, "read": progress.read, "committed": progress.committed, **hub.health()}


def _commit(hub: Hub, request: _Arguments) -> dict[str, Any]:
    positions = [int(position) for position in request["positions"]]
    hub.stream(request["stream"]).queue.commit(str(request["group"]), positions)
    return {}


def _leave(hub: Hub, request: _Arguments) -> dict[str, Any]:
    hub.stream(request["stream"]).queue.leave(str(request["group"]), hub.now())
    return {}


_Answer: TypeAlias = dict[str, Any] | _Rows
_HANDLERS: Mapping[str, Callable[[Hub, _Arguments], _Answer]] = {
    "describe": _describe,
    "status": _status,
    "read": _Rows,
    "commit": _commit,
    "leave": _leave,
    "start": _start,
    "totals": lambda hub, _: hub.totals(),
    "log": lambda hub, _: hub.diary(),
}


def _handler(kind: object) -> Callable[[Hub, _Arguments], _Answer]:
    if not isinstance(kind, str) or kind not in _HANDLERS:
        raise HeadraceError(f"unknown request '{kind}'", detail=f"requests: {', '.join(_HANDLERS)}")
    return _HANDLERS[kind]
