"""The driver process: generates rows, stamps them on schedule, and serves them to consumers that pull.

    python -m headrace.bench.driver.server        the first line of its input is JSON:
        {"streams": [StreamSpec …], "capacity_rows": n, "host": "127.0.0.1", "cores": [0]}       (the last two are optional)

It answers with one line, `{"port": p, "line_ports": {stream: [port of each partition]}}`, and serves until its input ends.
`port` speaks the protocol of `DriverConnection`. A line port sends text to each connected consumer, one line a row, starting with
the next row produced, as fast as the consumer reads. `driver.capacity` measures the capacity of one driver process.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.bench.conversation import DriverConnection
from headrace.bench.followers import LineConsumers
from headrace.bench.hub import DriverHub
from headrace.bench.stream import StreamSpec
from headrace.connectors.tcp_protocol import tune_socket
from headrace.errors import HeadraceError

_TICK_SECONDS = 0.01  # seconds
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
