"""Pickle UDFs with Spark's cloudpickle: the code and everything it refers to, so that workers do not need the user's modules."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from pyspark import cloudpickle as untyped

from headrace.errors import SchemaError

cloudpickle: Any = untyped


def pickle_code(name: str, code: Any, modules: Iterable[ModuleType]) -> bytes:
    """Return a function as bytes for `pickle.loads`; definitions in `modules` are pickled by value.

    Raises SchemaError if the function refers to a value that cannot be pickled.
    """
    registered = cloudpickle.cloudpickle.list_registry_pickle_by_value()
    by_value = [module for module in modules if module.__name__ not in registered]
    try:
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)
        content: bytes = cloudpickle.dumps(code)
    except Exception as error:  # pickling a user's value may raise anything
        raise SchemaError(
            f"function '{name}' cannot be stored", detail=str(error), hint="it must not refer to files, locks or sessions"
        ) from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return content
