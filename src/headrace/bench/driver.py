"""The driver process: makes rows, lets them be born on time, and serves whoever pulls.

    python -m headrace.bench.driver        the first line of its input is JSON:
        {"streams": [StreamSpec …], "capacity_rows": n, "host": "127.0.0.1", "cores": [0]}       (the last two are optional)

It answers with one line, `{"port": p, "line_ports": {stream: [port of each partition]}}`, and serves until its input ends.
On `port` it talks as `conversation` says; a line port gives text to whoever connects, one line a row, from the row that is
born next on, as fast as it is taken. How much it can serve is measured by `driver_measure`.
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

from headrace.bench.conversation import Conversation
from headrace.bench.followers import Followers
from headrace.bench.hub import Hub
from headrace.bench.stream import StreamSpec
from headrace.connectors.tcp_protocol import tuned
from headrace.errors import HeadraceError

_TICK = 0.01  # seconds
_SWITCH = 0.0005  # seconds a thread may hold the interpreter while another one waits


class Driver:
    """The sockets around a hub; threads end with the process, or with `close`."""

    def __init__(self, hub: Hub, host: str = "127.0.0.1") -> None:
        """Open the ports."""
        self.hub, self._host = hub, host
        self._closed = threading.Event()
        self._listening: list[socket.socket] = []
        self.port = self._open(self._converse)
        self.line_ports = {
            name: [self._open(Followers(hub, served, p, self._closed).add) for p in range(served.spec.partitions)]
            for name, served in hub.streams.items()
        }

    def _open(self, serve: Callable[[socket.socket], None]) -> int:
        listening = socket.create_server((self._host, 0))
        self._listening.append(listening)
        _begin(self._accept, listening, serve)
        return int(listening.getsockname()[1])

    def _accept(self, listening: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):  # it was closed, or whoever came is gone again
                serve(listening.accept()[0])

    def _converse(self, sock: socket.socket) -> None:
        _begin(_hung_up_is_fine, Conversation(self.hub, tuned(sock)).run)

    def keep_ticking(self) -> None:
        """Tick until closed; a failure ends the process, for a driver that stamps no rows is worse than none."""
        try:
            while not self._closed.wait(_TICK):
                self.hub.tick()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)

    def close(self) -> None:
        """Close the ports; conversations under way end when the other side hangs up."""
        self._closed.set()
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes up whoever accepts
            listening.close()


def _begin(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _hung_up_is_fine(talk: Callable[[], None]) -> None:
    with contextlib.suppress(ConnectionError):
        talk()


def open_driver(config: Mapping[str, Any], clock: Callable[[], float]) -> Driver:
    """Make the driver that a configuration describes; raises HeadraceError."""
    try:
        streams: Sequence[Mapping[str, Any]] = config["streams"]
        hub = Hub([StreamSpec.from_json(spec) for spec in streams], int(config["capacity_rows"]), clock)
    except (KeyError, TypeError, ValueError) as error:
        raise HeadraceError("the configuration of the driver is not understood", detail=repr(error)) from error
    return Driver(hub, config.get("host", "127.0.0.1"))


def main() -> None:
    """Serve until standard input ends."""
    try:
        config = json.loads(sys.stdin.readline())
        if config.get("cores"):
            os.sched_setaffinity(0, config["cores"])
        driver = open_driver(config, time.time)
    except (HeadraceError, ValueError, AttributeError) as error:
        sys.exit(str(error))
    sys.setswitchinterval(_SWITCH)
    _begin(driver.keep_ticking)
    print(json.dumps({"port": driver.port, "line_ports": driver.line_ports}), flush=True)
    while sys.stdin.readline():
        pass
    os._exit(0)  # threads may be in the middle of a send


if __name__ == "__main__":
    main()
