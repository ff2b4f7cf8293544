"""Consumers that a process keeps between ranges: one that has read a range prefetches what follows it.

A consumer is borrowed by one thread at a time; a consumer that nobody has borrowed for a minute is closed by a thread, which ends
with the last one. A fork never uses the consumers of its parent.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.connectors.kafka.librdkafka import TopicConsumer

IDLE_SECONDS = 60.0  # then the stream of a consumer was dropped, or is read by other workers
PoolKey = tuple[str, ...]  # options of the client, topic, id of the topic


class ConsumerPool:
    """The consumers of this process that are not in use. Thread-safe."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Create an empty pool."""
        self.pid, self._idle_seconds = os.getpid(), idle_seconds
        self._idle: dict[PoolKey, list[tuple[float, TopicConsumer]]] = {}
        self._returned = threading.Condition()
        self._closer: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of idle consumers."""
        with self._returned:
            return sum(map(len, self._idle.values()))

    @contextmanager
    def borrow(self, key: PoolKey, make: Callable[[], TopicConsumer]) -> Iterator[TopicConsumer]:
        """Borrow a consumer, or make one; one that failed is closed."""
        with self._returned:
            idle = self._idle.get(key)
            consumer = idle.pop()[1] if idle else None
        consumer = consumer or make()
        try:
            yield consumer
        except BaseException:
            consumer.close()
            raise
        with self._returned:
            self._idle.setdefault(key, []).append((time.monotonic(), consumer))
            if self._closer is None:
                self._closer = threading.Thread(target=self._close_when_idle, name="headrace-kafka-idle", daemon=True)
                self._closer.start()

    def close_idle(self, used_before: float = math.inf) -> None:
        """Close the idle consumers that were last used before a time of the monotonic clock."""
        with self._returned:
            expired = self._take_idle(used_before)
            self._returned.notify_all()
        for consumer in expired:
            consumer.close()

    def _take_idle(self, used_before: float) -> list[TopicConsumer]:
        expired = [consumer for idle in self._idle.values() for used_at, consumer in idle if used_at < used_before]
        self._idle = {
            key: left for key, idle in self._idle.items() if (left := [(t, consumer) for t, consumer in idle if t >= used_before])
        }
        return expired

    def _close_when_idle(self) -> None:
        while True:
            with self._returned:
                expired = self._take_idle(time.monotonic() - self._idle_seconds)
                if not self._idle and not expired:
                    self._closer = None
                    return
                if not expired:
                    oldest = min(used_at for idle in self._idle.values() for used_at, _ in idle)
                    self._returned.wait(max(0.001, oldest + self._idle_seconds - time.monotonic()))
            for consumer in expired:
                consumer.close()


_pools = [ConsumerPool()]


def get_pool() -> ConsumerPool:
    """Return the pool of this process."""
    if _pools[0].pid != os.getpid():
        _pools[0] = ConsumerPool()
    return _pools[0]
