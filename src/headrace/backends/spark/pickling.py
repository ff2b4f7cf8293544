"""Functions as bytes, by the pickler that Spark brings along: code and all it refers to, so that no user's module is needed."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from pyspark import cloudpickle as untyped

from headrace.errors import SchemaError

cloudpickle: Any = untyped


def pickled(name: str, code: Any, modules: Iterable[ModuleType]) -> bytes:
    """Return a function as bytes that `pickle.loads` reads; what is defined in `modules` goes with it."""
    registered = cloudpickle.cloudpickle.list_registry_pickle_by_value()
    ours = [module for module in modules if module.__name__ not in registered]
    try:
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        content: bytes = cloudpickle.dumps(code)
    except Exception as error:  # whatever the values it holds do when they are pickled
        raise SchemaError(
            f"function '{name}' cannot be kept", detail=str(error), hint="it must not hold files, locks or sessions"
        ) from error
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)
    return content
