"""Requests to object stores that run at the same time, or that nothing waits for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import lru_cache
from typing import TypeVar

from headrace.storage.store import Store

_THREADS = 16

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def run_requests(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the results of a function for all items, in their order; the calls wait for the network at the same time.

    Raises the first error, when all calls have ended. The function must not call `run_requests`.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    futures = [_open_pool(os.getpid()).submit(copy_context().run, function, item) for item in items]
    wait(futures)
    return [future.result() for future in futures]


@lru_cache(maxsize=1)
def _open_pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process; one that was forked has none of its parent, hence `process`."""
    del process
    return ThreadPoolExecutor(_THREADS, "headrace-requests")


class DeferredDeletion:
    """Deletes objects of a remote store in a thread of its own; those of a folder at once.

    One request runs at a time, and the next one has everything that was submitted meanwhile. Callers serialize their calls.
    """

    def __init__(self, store: Store) -> None:
        """Take the store; the thread starts with the first object."""
        self._store = store
        self._keys: list[str] = []  # to delete with the next request
        self._running: Future[None] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, keys: Iterable[str]) -> None:
        """Delete objects soon; raises StorageError if the store refused these, or earlier ones: the caller sweeps them later."""
        if not self._store.is_remote:
            self._store.delete_many(keys)
            return
        self._keys += keys
        if self._running is not None and not self._running.done():
            return
        finished, self._running = self._running, None
        if self._keys:
            self._pool = self._pool or ThreadPoolExecutor(1, "headrace-deletion")
            self._running, self._keys = self._pool.submit(self._store.delete_many, self._keys), []
        if finished is not None:
            finished.result()

    def close(self) -> None:
        """Wait for the request that runs. What was not deleted is swept by the next session."""
        if self._pool is not None:
            self._pool.shutdown()
