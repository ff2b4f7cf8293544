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

from headrace.bench.hub import DriverHub
from headrace.bench.served import ServedStream

_SEND_BUFFER_BYTES = 1 << 18  # small, because rows in a socket buffer count as read
_CHUNKS_PER_TURN = 8  # chunks sent to one consumer before the next consumer's turn
_POLL_MILLISECONDS = 10  # milliseconds

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
