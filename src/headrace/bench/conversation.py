"""The answering side of `headrace.connectors.tcp_protocol`, one consumer at a time.

Beside the requests of that table, the runner has three of its own:

| request | arguments | answer |
|---|---|---|
| start | rate: a RateScript, rows/s over all streams, or null | rows are born by it from `now` on |
| totals | | now, produced, read, committed over all streams; overflowed, dropped, served_bytes |
| log | | series, pulls, marks: see `driver_log` |

Whatever is wrong with a request is answered with its error; only a consumer that hangs up ends a conversation.
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
_LONGEST = 1 << 20  # bytes of a request
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream


class Conversation:
    """One connection, until it ends."""

    def __init__(self, hub: Hub, sock: socket.socket) -> None:
        """Take the socket; `run` talks."""
        self._hub, self._socket = hub, sock

    def run(self) -> None:
        """Answer requests until the other side hangs up."""
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
            return {"error": f"the request is not understood: {error!r}"}


class _Rows:
    """The answer to a read: checked when made, so that an error is still an answer."""

    def __init__(self, hub: Hub, request: _Arguments) -> None:
        self._hub, self._stream = hub, hub.stream(request["stream"])
        self._group, self._partition = str(request["group"]), int(request["partition"])
        self._start, self._stop = int(request["start"]), int(request["stop"])
        self._schema = self._stream.schema(request.get("columns"))
        times = self._stream.queue.take(self._group, self._partition, self._start, self._stop)
        self._batches = self._stream.batches(self._partition, self._start, times, self._schema)

    def send(self, sock: socket.socket) -> None:
        head = self._schema.serialize()
        size = head.size + sum(map(pa.ipc.get_record_batch_size, self._batches)) + len(_END)
        sock.sendall(json.dumps({"bytes": size}).encode() + b"\n" + head.to_pybytes())
        for batch in self._batches:
            sock.sendall(batch.serialize())
        sock.sendall(_END)
        self._hub.served(size)
        self._stream.queue.took(self._group, self._partition, self._start, self._stop, self._hub.now())


def _describe(hub: Hub, _: _Arguments) -> dict[str, Any]:
    streams = {
        name: {"schema": served.spec.schema.to_ddl(), "time": served.spec.time, "partitions": served.spec.partitions}
        for name, served in hub.streams.items()
    }
    return {"identity": hub.identity, "streams": streams}


def _start(hub: Hub, request: _Arguments) -> dict[str, Any]:
    rate = request["rate"]
    return {"now": hub.start(None if rate is None else RateScript.from_json(rate))}


def _status(hub: Hub, request: _Arguments) -> dict[str, Any]:
    begin = request.get("from", "oldest")
    if begin not in {"oldest", "now"}:
        raise HeadraceError(f"a group cannot begin at '{begin}'", hint='say "oldest" or "now"')
    found = hub.stream(request["stream"]).queue.progress(str(request["group"]), from_now=begin == "now")
    return {"produced": found.produced, "read": found.read, "committed": found.committed, **hub.health()}


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
        raise HeadraceError(f"there is no request '{kind}'", detail=f"requests: {', '.join(_HANDLERS)}")
    return _HANDLERS[kind]
