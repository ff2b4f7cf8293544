"""Load execution back-ends by name. A back-end's module is imported on first use, so unused back-ends cost no start-up time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from headrace.connectors import Source
from headrace.errors import HeadraceError, SessionError
from headrace.runtime.backend import Backend

_BACKEND_MODULES = {
    "spark": "headrace.backends.spark.backend",
    "local": "headrace.backends.local",
    "reference": "headrace.backends.oracle",
}


def load_backend(name: str, *, master: str, spark: Any, fault: Callable[[str], None]) -> Backend:
    """Create and start the back-end of that name; raises SessionError for an unknown name."""
    if name not in _BACKEND_MODULES:
        raise SessionError(f"unknown back-end '{name}'", detail=f"back-ends: {', '.join(_BACKEND_MODULES)}")
    create: Callable[..., Backend] = importlib.import_module(_BACKEND_MODULES[name]).create
    return create(master=master, spark=spark, fault=fault)


def pickle_function(name: str, code: Any, modules: Iterable[ModuleType]) -> bytes:
    """Return a function as pickled bytes. The pickler is Spark's cloudpickle, imported only when a function is registered."""
    pickle_code: Callable[..., bytes] = importlib.import_module("headrace.backends.spark.pickling").pickled
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
