"""UDFs in a worker, loaded from checkpoint files that are immutable once written."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.errors import EvaluationError
from headrace.model.function import UdfCode, register_udf_code, udf_name
from headrace.model.record import record
from headrace.storage import container
from headrace.storage.store import Store

_LOADED_TAGS: set[str] = set()
PYTHON_VERSION = ".".join(platform.python_version_tuple()[:2])
"""UDFs are stored as bytecode, which runs only on the Python version that compiled it."""


@record("stored-function")
@dataclass(frozen=True, slots=True)
class StoredFunction:
    """The pickled code of a UDF, and the Python version that it needs."""

    python: str
    code: bytes


def get_udf_key(tag: str) -> str:
    """Return the key of a UDF's file."""
    return f"functions/{tag}.function"


def write_udf(store: Store, tag: str, content: bytes) -> None:
    """Store a pickled UDF durably; queries that call it need the file."""
    container.write(store, get_udf_key(tag), StoredFunction(PYTHON_VERSION, content))


def load_udfs(store: Store, tags: Iterable[str]) -> None:
    """Register UDFs for evaluation; a UDF that fails to load fails only the queries that call it."""
    for tag in tags:
        if tag in _LOADED_TAGS:
            continue
        stored: StoredFunction = container.read(store, get_udf_key(tag))
        try:
            register_udf_code(tag, _unpickle_udf(tag, stored.python, stored.code))
        except Exception as error:  # noqa: BLE001  unpickling runs user code
            register_udf_code(tag, _make_failing_udf(f"cannot load function '{udf_name(tag)}': {type(error).__name__}: {error}"))
        else:
            _LOADED_TAGS.add(tag)


def _unpickle_udf(tag: str, python: str, content: bytes) -> UdfCode:
    if python != PYTHON_VERSION:
        raise EvaluationError(f"'{udf_name(tag)}' was registered under Python {python}, but this worker runs {PYTHON_VERSION}")
    code: UdfCode = pickle.loads(content)
    return code


def _make_failing_udf(message: str) -> UdfCode:
    def fail(*_: Any) -> Any:
        raise EvaluationError(message)

    return fail
