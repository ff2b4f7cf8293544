"""The consumers of one line port: each receives the same text, at its own pace.

One thread serves all consumers of a partition. A chunk of text is rendered once; a slow consumer does not delay the others, and
its rows stay in the queue. Bytes accepted by a socket count as read and committed: a text consumer cannot read them again.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
from dataclasses import dataclass

from headrace.bench.hub import Hub
from headrace.bench.served import Served

_BUFFER = 1 << 18  # small, because rows in a socket buffer count as read
_AT_ONCE = 8  # chunks sent to one consumer before the next consumer's turn
_PAUSE = 10  # milliseconds

_numbers = itertools.count()


@dataclass(slots=True)
class _Follower:
    """A consumer: it has taken the rows before `position`, and of the text up to row `stop` all but `unsent`.

    `state` is "eager" (more to send), "content" (caught up), "full" (its socket buffer is full) or "gone" (disconnected).
    """

    sock: socket.socket
    group: str
    position: int
    stop: int
    rest: memoryview
    state: str = "eager"


class Followers:
    """The consumers of one partition. The accepting thread calls `add`; one thread started here serves them."""

    def __init__(self, hub: Hub, served: Served, partition: int, closed: threading.Event) -> None:
        """Serve until `closed` is set."""
        self._hub, self._served, self._partition, self._closed = hub, served, partition, closed
        self._lock = threading.Lock()
        self._all: list[_Follower] = []
        self._thread: threading.Thread | None = None
        self._poll = select.poll()

    def add(self, sock: socket.socket) -> None:
        """Add a consumer; it receives rows from the next one produced."""
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
                consumers = list(self._all)
            self._round([consumer for consumer in consumers if consumer.state != "full"])
            for consumer in consumers:
                if consumer.state == "gone":
                    self._drop(consumer)
            eager = any(consumer.state == "eager" for consumer in consumers)
            self._wait(
                {consumer.sock.fileno(): consumer for consumer in consumers if consumer.state == "full"}, 0 if eager else _PAUSE
            )
        for consumer in self._all:
            consumer.sock.close()

    def _round(self, consumers: list[_Follower]) -> None:
        """Send available text to each consumer, and record the progress of all at once."""
        before = {consumer.group: consumer.position for consumer in consumers}
        for consumer in consumers:
            try:
                consumer.state = self._send(consumer)
            except OSError:
                consumer.state = "gone"
        advanced = {consumer.group: consumer.position for consumer in consumers if consumer.position > before[consumer.group]}
        if advanced:
            self._served.queue.passed(advanced, self._partition, self._hub.now())

    def _send(self, consumer: _Follower) -> str:
        for _ in range(_AT_ONCE):
            if not consumer.rest:
                consumer.stop, text = self._served.text(self._partition, consumer.position)
                consumer.rest = memoryview(text)
                if consumer.stop == consumer.position:
                    return "content"
            try:
                sent = consumer.sock.send(consumer.rest)
            except BlockingIOError:
                return "full"
            self._hub.served(sent)
            consumer.rest = consumer.rest[sent:]
            if not consumer.rest:
                consumer.position = consumer.stop
        return "eager"

    def _wait(self, full_consumers: dict[int, _Follower], milliseconds: int) -> None:
        """Wait up to `milliseconds`, or until a full socket has room."""
        for descriptor in full_consumers:
            self._poll.register(descriptor, select.POLLOUT)
        ready = {descriptor for descriptor, _ in self._poll.poll(milliseconds)}
        for descriptor, consumer in full_consumers.items():
            self._poll.unregister(descriptor)
            if descriptor in ready:
                consumer.state = "eager"

    def _drop(self, consumer: _Follower) -> None:
        with self._lock:
            self._all.remove(consumer)
        consumer.sock.close()
        self._served.queue.leave(consumer.group, self._hub.now())
        self._hub.dropped()
