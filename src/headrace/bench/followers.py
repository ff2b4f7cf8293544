"""Whoever is connected to one line port: all of them get the same text, each as fast as it takes it.

One thread serves them all. Text is made once; a consumer that takes none holds up nobody else, and its rows stay in the
queue. What a socket took is read and committed: its consumer cannot ask again.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
from dataclasses import dataclass

from headrace.bench.hub import Hub
from headrace.bench.served import Served

_BUFFER = 1 << 18  # bytes: what lies in a socket counts as read, so there should not be much of it
_AT_ONCE = 8  # chunks for one consumer before it is the next one's turn
_PAUSE = 10  # milliseconds

_numbers = itertools.count()


@dataclass(slots=True)
class _Follower:
    """A consumer: rows before `position` were taken, and of the text up to row `stop` all but `rest`."""

    sock: socket.socket
    group: str
    position: int
    stop: int
    rest: memoryview
    state: str = "eager"  # or "content": it has all there is; "full": its socket is; "gone"


class Followers:
    """The consumers of one partition. Whoever accepts them calls `add`; a thread of its own serves them."""

    def __init__(self, hub: Hub, served: Served, partition: int, closed: threading.Event) -> None:
        """Serve until `closed`."""
        self._hub, self._served, self._partition, self._closed = hub, served, partition, closed
        self._lock = threading.Lock()
        self._all: list[_Follower] = []
        self._thread: threading.Thread | None = None
        self._poll = select.poll()

    def add(self, sock: socket.socket) -> None:
        """Take a consumer in; it gets the rows from the next one on."""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        group = f"line {next(_numbers)}"
        position = self._served.queue.follow(group, self._partition)
        with self._lock:
            self._all.append(_Follower(sock, group, position, position, memoryview(b"")))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                everyone = list(self._all)
            self._round([one for one in everyone if one.state != "full"])
            for one in everyone:
                if one.state == "gone":
                    self._drop(one)
            eager = any(one.state == "eager" for one in everyone)
            self._wait({one.sock.fileno(): one for one in everyone if one.state == "full"}, 0 if eager else _PAUSE)
        for one in self._all:
            one.sock.close()

    def _round(self, followers: list[_Follower]) -> None:
        """Send to each what there is, and note it for all of them at once."""
        before = {one.group: one.position for one in followers}
        for one in followers:
            try:
                one.state = self._send(one)
            except OSError:
                one.state = "gone"
        taken = {one.group: one.position for one in followers if one.position > before[one.group]}
        if taken:
            self._served.queue.passed(taken, self._partition, self._hub.now())

    def _send(self, one: _Follower) -> str:
        for _ in range(_AT_ONCE):
            if not one.rest:
                one.stop, text = self._served.text(self._partition, one.position)
                one.rest = memoryview(text)
                if one.stop == one.position:
                    return "content"
            try:
                sent = one.sock.send(one.rest)
            except BlockingIOError:
                return "full"
            self._hub.served(sent)
            one.rest = one.rest[sent:]
            if not one.rest:
                one.position = one.stop
        return "eager"

    def _wait(self, full: dict[int, _Follower], milliseconds: int) -> None:
        """Wait for the next rows, or until a socket that was full has room."""
        for number in full:
            self._poll.register(number, select.POLLOUT)
        ready = {number for number, _ in self._poll.poll(milliseconds)}
        for number, one in full.items():
            self._poll.unregister(number)
            if number in ready:
                one.state = "eager"

    def _drop(self, one: _Follower) -> None:
        with self._lock:
            self._all.remove(one)
        one.sock.close()
        self._served.queue.leave(one.group, self._hub.now())
        self._hub.dropped()
