"""The interface of an execution back-end, and the loading of back-ends by name.

A back-end runs the stages of a micro-batch. Its module is imported on first use, so unused back-ends cost no start-up time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from headrace.connectors import Range, Sink, Source, parse_sink
from headrace.connectors.worker_places import WorkerPlace, list_sink_places, list_source_places
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.errors import HeadraceError, SessionError
from headrace.model.partition_map import PartitionMap
from headrace.storage.checkpoint import Checkpoint


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


@dataclass(frozen=True, slots=True)
class BackendStart:
    """The name of a back-end, and how to start it; back-ends other than Spark ignore the settings of Spark."""

    name: str
    master: str | None = None
    spark: Any = None
    spark_config: Mapping[str, Any] = field(default_factory=dict)
    exchange: str = "auto"

    def prepare(self) -> None:
        """Do what no cluster sees: import the module, start processes here; raises SessionError for an unknown name."""
        prepare = getattr(self._load_module(), "prepare", None)
        if prepare is not None:
            prepare(master=self.master, spark=self.spark, spark_config=self.spark_config)

    def create(self) -> Backend:
        """Create and start the back-end; raises SessionError for an unknown name."""
        create: Callable[..., Backend] = self._load_module().create
        return create(master=self.master, spark=self.spark, spark_config=self.spark_config, exchange=self.exchange)

    def _load_module(self) -> ModuleType:
        if self.name not in _BACKEND_MODULES:
            raise SessionError(f"unknown back-end '{self.name}'", detail=f"back-ends: {', '.join(_BACKEND_MODULES)}")
        return importlib.import_module(_BACKEND_MODULES[self.name])


def warm_up_backend(backend: Backend, is_wanted: Callable[[], bool]) -> None:
    """Let the workers of a back-end load what every micro-batch needs, as long as `is_wanted`; raises nothing."""
    warm_up: Callable[[Callable[[], bool]], None] | None = getattr(backend, "warm_up", None)
    if warm_up is not None:
        warm_up(is_wanted)


def measure_parallelism(backend: Backend) -> int:
    """Return the parallelism of a back-end; one with workers elsewhere waits until those that it starts with are there."""
    wait: Callable[[], None] | None = getattr(backend, "wait_until_complete", None)
    if wait is not None:
        wait()
    return backend.parallelism


def get_max_map_tasks(backend: Backend) -> int:
    """Return the number of map tasks that a large batch may have: more than run now, where tasks that wait start executors."""
    return int(getattr(backend, "max_map_tasks", backend.parallelism))


def probe_backend(
    backend: Backend, checkpoint: Checkpoint, sources: Mapping[str, Source], list_sinks: Callable[[], Iterable[Sink]]
) -> None:
    """Let a back-end with workers elsewhere check that all of them can use the checkpoint; raises SessionError otherwise.

    Workers that come later are checked, too, and for the places of the sources and sinks that there are then.
    """

    def list_places() -> list[WorkerPlace]:
        of_sources = [place for source in sources.values() for place in list_source_places(source)]
        return list(dict.fromkeys([*of_sources, *list_sink_places(list_sinks())]))

    probe: Callable[[BatchJob, Callable[[], list[WorkerPlace]]], None] | None = getattr(backend, "probe", None)
    if probe is not None:
        location, identity = checkpoint.location, checkpoint.identity
        one = PartitionMap(1)
        job = BatchJob(-1, one, one, location, {}, (), checkpoint_id=identity, storage_options=checkpoint.options)
        probe(job, list_places)


def pickle_function(name: str, code: Any, modules: Iterable[ModuleType]) -> bytes:
    """Return a function as pickled bytes. The pickler is Spark's cloudpickle, imported only when a function is registered."""
    pickle_code: Callable[..., bytes] = importlib.import_module("headrace.backends.spark.pickling").pickle_code
    return pickle_code(name, code, modules)


def to_source(source: Any, backend: Backend) -> Source:
    """Return a source unchanged, and a streaming DataFrame wrapped as a source; raises HeadraceError for other values."""
    if hasattr(source, "plan") and hasattr(source, "attach"):
        _probe_places(backend, list_source_places(source))
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
    _probe_places(backend, list_sink_places([parsed]))
    return parsed


def _probe_places(backend: Backend, places: Sequence[WorkerPlace]) -> None:
    """Let a back-end with workers elsewhere check that they can use folders and URLs; raises SessionError otherwise."""
    probe: Callable[[Sequence[WorkerPlace]], None] | None = getattr(backend, "probe_places", None)
    if probe is not None and places:
        probe(places)
