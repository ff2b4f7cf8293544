"""The driver process: generates rows, stamps them on schedule, and serves them to consumers that pull.

    python -m headrace.bench.driver.server        the first line of its input is JSON:
        {"streams": [StreamSpec …], "capacity_rows": n, "host": "127.0.0.1", "cores": [0]}       (the last two are optional)

It answers with one line, `{"port": p, "line_ports": {stream: [port of each partition]}}`, and serves until its input ends. A line
port sends text to each connected consumer, one line a row, starting with the next row produced, as fast as the consumer reads.
`port` speaks `headrace.connectors.tcp_protocol`, with three more requests for the runner:

| request | arguments | answer |
|---|---|---|
| start | rate: a RateScript, rows/s over all streams, or null | the driver produces rows at this rate from `now` on |
| totals | | now, produced, read, committed over all streams; overflowed, dropped, served_bytes |
| log | | series, pulls, marks: see `DriverLog` |

An invalid request is answered with its error; the connection stays open until the consumer closes it. `driver.capacity` measures
the capacity of one driver process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.bench.driver.hub import DriverHub
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.serving import ServedStream
from headrace.bench.driver.streams import StreamSpec
from headrace.connectors.tcp import tune_socket
from headrace.errors import HeadraceError

_SEND_BUFFER_BYTES = 1 << 18  # small, because rows in a socket buffer count as read
_CHUNKS_PER_TURN = 8  # chunks sent to one consumer before the next consumer's turn
_POLL_MILLISECONDS = 10

_consumer_numbers = itertools.count()


@dataclass(slots=True)
class _LineConsumer:
    """A consumer: it has taken the rows before `position`, and of the text up to row `stop` all but `unsent`.

    `state` is "eager" (more to send), "content" (caught up), "full" (its socket buffer is full) or "gone" (disconnected).
    """

    sock: socket.socket
    group: str
    position: int
    stop: int
    unsent: memoryview
    state: str = "eager"


class LineConsumers:
    """The consumers of one partition. The accepting thread calls `add`; one thread started here serves them."""

    def __init__(self, hub: DriverHub, served: ServedStream, partition: int, closed: threading.Event) -> None:
        """Serve until `closed` is set."""
        self._hub, self._served, self._partition, self._closed = hub, served, partition, closed
        self._lock = threading.Lock()
        self._consumers: list[_LineConsumer] = []
        self._thread: threading.Thread | None = None
        self._poll = select.poll()

    def add(self, sock: socket.socket) -> None:
        """Add a consumer; it receives rows from the next one produced."""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        group = f"line {next(_consumer_numbers)}"
        position = self._served.queue.add_follower(group, self._partition)
        with self._lock:
            self._consumers.append(_LineConsumer(sock, group, position, position, memoryview(b"")))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve_loop, daemon=True)
                self._thread.start()

    def _serve_loop(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                consumers = list(self._consumers)
            self._send_round([consumer for consumer in consumers if consumer.state != "full"])
            for consumer in consumers:
                if consumer.state == "gone":
                    self._drop_consumer(consumer)
            eager = any(consumer.state == "eager" for consumer in consumers)
            self._wait_writable(
                {consumer.sock.fileno(): consumer for consumer in consumers if consumer.state == "full"},
                0 if eager else _POLL_MILLISECONDS,
            )
        for consumer in self._consumers:
            consumer.sock.close()

    def _send_round(self, consumers: list[_LineConsumer]) -> None:
        """Send available text to each consumer, and record the progress of all at once."""
        before = {consumer.group: consumer.position for consumer in consumers}
        for consumer in consumers:
            try:
                consumer.state = self._send_chunks(consumer)
            except OSError:
                consumer.state = "gone"
        advanced = {consumer.group: consumer.position for consumer in consumers if consumer.position > before[consumer.group]}
        if advanced:
            self._served.queue.record_consumed(advanced, self._partition, self._hub.now_us())

    def _send_chunks(self, consumer: _LineConsumer) -> str:
        for _ in range(_CHUNKS_PER_TURN):
            if not consumer.unsent:
                consumer.stop, text = self._served.read_text(self._partition, consumer.position)
                consumer.unsent = memoryview(text)
                if consumer.stop == consumer.position:
                    return "content"
            try:
                sent = consumer.sock.send(consumer.unsent)
            except BlockingIOError:
                return "full"
            self._hub.count_served_bytes(sent)
            consumer.unsent = consumer.unsent[sent:]
            if not consumer.unsent:
                consumer.position = consumer.stop
        return "eager"

    def _wait_writable(self, full_consumers: dict[int, _LineConsumer], milliseconds: int) -> None:
        """Wait up to `milliseconds`, or until a full socket has room."""
        for descriptor in full_consumers:
            self._poll.register(descriptor, select.POLLOUT)
        ready = {descriptor for descriptor, _ in self._poll.poll(milliseconds)}
        for descriptor, consumer in full_consumers.items():
            self._poll.unregister(descriptor)
            if descriptor in ready:
                consumer.state = "eager"

    def _drop_consumer(self, consumer: _LineConsumer) -> None:
        with self._lock:
            self._consumers.remove(consumer)
        consumer.sock.close()
        self._served.queue.remove_group(consumer.group, self._hub.now_us())
        self._hub.count_dropped_consumer()


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


_TICK_SECONDS = 0.01
_SWITCH_INTERVAL_SECONDS = 0.0005  # seconds between switches of the interpreter lock


class DriverServer:
    """The listening sockets around a hub; its threads end with `close` or with the process."""

    def __init__(self, hub: DriverHub, host: str = "127.0.0.1") -> None:
        """Open all ports."""
        self.hub, self._host = hub, host
        self._closed = threading.Event()
        self._listeners: list[socket.socket] = []
        self.port = self._open_port(self._serve_requests)
        self.line_ports = {
            name: [self._open_port(LineConsumers(hub, served, p, self._closed).add) for p in range(served.spec.partitions)]
            for name, served in hub.streams.items()
        }

    def _open_port(self, serve: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server((self._host, 0))
        self._listeners.append(listener)
        _start_thread(self._accept_loop, listener, serve)
        return int(listener.getsockname()[1])

    def _accept_loop(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):  # the listener was closed, or the client disconnected already
                serve(listener.accept()[0])

    def _serve_requests(self, sock: socket.socket) -> None:
        _start_thread(_ignore_disconnect, DriverConnection(self.hub, tune_socket(sock)).run)

    def run_ticks(self) -> None:
        """Tick until closed. On an error end the process: a driver that stamps no rows makes every result wrong."""
        try:
            while not self._closed.wait(_TICK_SECONDS):
                self.hub.tick()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)

    def close(self) -> None:
        """Close the ports; open connections end when their peer disconnects."""
        self._closed.set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread blocked in accept
            listener.close()


def _start_thread(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _ignore_disconnect(serve: Callable[[], None]) -> None:
    with contextlib.suppress(ConnectionError):
        serve()


def open_driver(config: Mapping[str, Any], clock: Callable[[], float]) -> DriverServer:
    """Create the driver of a configuration; raise HeadraceError if the configuration is invalid."""
    try:
        streams: Sequence[Mapping[str, Any]] = config["streams"]
        hub = DriverHub([StreamSpec.from_json(spec) for spec in streams], int(config["capacity_rows"]), clock)
    except (KeyError, TypeError, ValueError) as error:
        raise HeadraceError("invalid driver configuration", detail=repr(error)) from error
    return DriverServer(hub, config.get("host", "127.0.0.1"))


def main() -> None:
    """Serve until standard input ends."""
    try:
        config = json.loads(sys.stdin.readline())
        if config.get("cores"):
            os.sched_setaffinity(0, config["cores"])
        driver = open_driver(config, time.time)
    except (HeadraceError, ValueError, AttributeError) as error:
        sys.exit(str(error))
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    _start_thread(driver.run_ticks)
    print(json.dumps({"port": driver.port, "line_ports": driver.line_ports}), flush=True)
    while sys.stdin.readline():
        pass
    os._exit(0)  # daemon threads may still be sending


if __name__ == "__main__":
    main()
