"""UDFs in a worker, loaded from checkpoint files that are immutable once written."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.errors import EvaluationError
from headrace.model.function import UdfCode, register_udf_code, udf_name
from headrace.storage import container

_LOADED_TAGS: set[str] = set()
PYTHON_VERSION = ".".join(platform.python_version_tuple()[:2])
"""UDFs are stored as bytecode, which runs only on the Python version that compiled it."""


def get_udf_path(directory: str | Path, tag: str) -> Path:
    """Return the path of a UDF's file."""
    return Path(directory) / "functions" / f"{tag}.function"


def write_udf(directory: str | Path, tag: str, content: bytes) -> None:
    """Store a pickled UDF durably; queries that call it need the file."""
    container.write(get_udf_path(directory, tag), (PYTHON_VERSION, content))


def load_udfs(directory: str | Path, tags: Iterable[str]) -> None:
    """Register UDFs for evaluation; a UDF that fails to load fails only the queries that call it."""
    for tag in tags:
        if tag in _LOADED_TAGS:
            continue
        python, content = container.read(get_udf_path(directory, tag))
        try:
            register_udf_code(tag, _unpickle_udf(tag, python, content))
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
