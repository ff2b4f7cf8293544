"""The interface of an execution back-end, and the loading of back-ends by name.

A back-end runs the stages of a micro-batch. Its module is imported on first use, so unused back-ends cost no start-up time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol

from headrace.connectors import Range, Source
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.errors import HeadraceError, SessionError


class Backend(Protocol):
    """Runs map → shuffle → reduce. A back-end holds no state that recovery needs: the checkpoint has all of it."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run concurrently."""

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run the map stage on every task, shuffle, and run the reduce stage on every partition.

        Return one report for each partition. After a failure the caller may pass the same job again: the reports name the
        files of the attempt that counts.
        """

    def close(self) -> None:
        """Release all resources."""


_BACKEND_MODULES = {
    "spark": "headrace.backends.spark.backend",
    "local": "headrace.backends.local",
    "reference": "headrace.backends.oracle",
}


def load_backend(name: str, *, master: str, spark: Any) -> Backend:
    """Create and start the back-end of that name; raises SessionError for an unknown name."""
    if name not in _BACKEND_MODULES:
        raise SessionError(f"unknown back-end '{name}'", detail=f"back-ends: {', '.join(_BACKEND_MODULES)}")
    create: Callable[..., Backend] = importlib.import_module(_BACKEND_MODULES[name]).create
    return create(master=master, spark=spark)


def pickle_function(name: str, code: Any, modules: Iterable[ModuleType]) -> bytes:
    """Return a function as pickled bytes. The pickler is Spark's cloudpickle, imported only when a function is registered."""
    pickle_code: Callable[..., bytes] = importlib.import_module("headrace.backends.spark.pickling").pickle_code
    return pickle_code(name, code, modules)


def to_source(source: Any, backend: Backend) -> Source:
    """Return a source unchanged, and a streaming DataFrame wrapped as a source; raises HeadraceError for other values."""
    if hasattr(source, "plan") and hasattr(source, "attach"):
        return source  # type: ignore[no-any-return]
    wrap = getattr(backend, "stream_source", None)
    if wrap is not None and getattr(source, "isStreaming", False):
        return wrap(source)  # type: ignore[no-any-return]
    raise HeadraceError(
        f"'{type(source).__name__}' is not a source", hint="use MemorySource, FileSource, RateSource or a streaming DataFrame"
    )
