"""The interface of an execution back-end, and the loading of back-ends by name.

A back-end runs the stages of a micro-batch. Its module is imported on first use, so unused back-ends cost no start-up time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from headrace.connectors import FileSource, Range, Sink, Source, parse_sink
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.errors import HeadraceError, SessionError
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.locations import is_url


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


def load_backend(
    name: str,
    *,
    master: str | None = None,
    spark: Any = None,
    spark_config: Mapping[str, Any] | None = None,
    exchange: str = "auto",
) -> Backend:
    """Create and start the back-end of that name; raises SessionError for an unknown name.

    Other back-ends ignore the settings of Spark.
    """
    if name not in _BACKEND_MODULES:
        raise SessionError(f"unknown back-end '{name}'", detail=f"back-ends: {', '.join(_BACKEND_MODULES)}")
    create: Callable[..., Backend] = importlib.import_module(_BACKEND_MODULES[name]).create
    return create(master=master, spark=spark, spark_config=spark_config or {}, exchange=exchange)


def probe_backend(backend: Backend, checkpoint: Checkpoint) -> None:
    """Let a back-end with workers elsewhere check that all of them can use the checkpoint; raises SessionError otherwise."""
    probe: Callable[[BatchJob], None] | None = getattr(backend, "probe", None)
    if probe is not None:
        location, identity = checkpoint.location, checkpoint.identity
        probe(BatchJob(-1, 1, 1, location, {}, (), checkpoint_id=identity, storage_options=checkpoint.options))


def pickle_function(name: str, code: Any, modules: Iterable[ModuleType]) -> bytes:
    """Return a function as pickled bytes. The pickler is Spark's cloudpickle, imported only when a function is registered."""
    pickle_code: Callable[..., bytes] = importlib.import_module("headrace.backends.spark.pickling").pickle_code
    return pickle_code(name, code, modules)


def to_source(source: Any, backend: Backend) -> Source:
    """Return a source unchanged, and a streaming DataFrame wrapped as a source; raises HeadraceError for other values."""
    if hasattr(source, "plan") and hasattr(source, "attach"):
        if isinstance(source, FileSource):
            _probe_folder(backend, str(source.definition()["path"]), "folder of the stream")
        return source  # type: ignore[no-any-return]
    wrap = getattr(backend, "stream_source", None)
    if wrap is not None and getattr(source, "isStreaming", False):
        return wrap(source)  # type: ignore[no-any-return]
    raise HeadraceError(
        f"'{type(source).__name__}' is not a source", hint="use MemorySource, FileSource, RateSource or a streaming DataFrame"
    )


def to_sink(sink: Any, backend: Backend) -> Sink:
    """Return the sink that a value stands for; raises SinkError for an unknown one, SessionError if workers do not see it."""
    parsed = parse_sink(sink)
    path = str(getattr(parsed, "path", ""))
    if path and parsed.written_by_workers:
        _probe_folder(backend, path, "folder of the sink")
    return parsed


def _probe_folder(backend: Backend, folder: str, use: str) -> None:
    """Let a back-end with workers elsewhere check that they see a folder, or that of a pattern of files."""
    probe: Callable[[str, str], None] | None = getattr(backend, "probe_folder", None)
    if probe is not None and not is_url(folder):
        probe(folder, use)
