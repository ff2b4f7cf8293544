"""Register and drop UDFs between micro-batches. The checkpoint stores the code before any query can call it."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import NameTakenError, NotFoundError, SchemaError, SqlError
from headrace.execution.functions import get_udf_path, write_udf
from headrace.model.function import UdfCode, UserFunction
from headrace.runtime.backends import pickled
from headrace.runtime.code_digest import digest_of
from headrace.runtime.commands import Add, from_json
from headrace.runtime.coordinator import Coordinator
from headrace.sql.user_functions import check_function_name, list_called_functions


def register(
    coordinator: Coordinator, name: str, code: UdfCode, result: pa.DataType, arguments: tuple[pa.DataType | None, ...]
) -> UserFunction:
    """Register a UDF for queries that are added later; the caller must hold the batch lock.

    Registering an identical function again has no effect, as after recovery. A different function of the same name replaces the
    registered one; raises NameTakenError while a query calls that one, because the query's meaning must not change. Raises
    SchemaError for an invalid name or a function that cannot be stored.
    """
    try:
        check_function_name(name)
    except SqlError as problem:
        raise SchemaError(problem.message, hint=problem.hint) from None
    registered = coordinator.state.functions
    digest = digest_of(name, code, [kind and str(kind) for kind in arguments], str(result))
    udf = UserFunction(name.lower(), digest.text, arguments, result)
    if registered.offered.get(udf.name) == udf:
        return udf
    if udf.name in registered.offered:
        _check_unused(coordinator, udf.name, f"function '{udf.name}' is already registered with different code or types")
    if not get_udf_path(coordinator.checkpoint.path, udf.tag).exists():
        write_udf(coordinator.checkpoint.path, udf.tag, pickled(udf.name, code, digest.modules))
    coordinator.state.functions = registered.plus(udf)
    return udf


def drop(coordinator: Coordinator, name: str) -> None:
    """Drop a UDF; raises NotFoundError if it is not registered, and NameTakenError while a query calls it."""
    registered = coordinator.state.functions
    if name.lower() not in registered.offered:
        raise NotFoundError(
            f"function '{name}' is not registered", detail=f"functions: {', '.join(sorted(registered.offered)) or 'none'}"
        )
    _check_unused(coordinator, name.lower(), f"function '{name}' is in use")
    coordinator.state.functions = registered.minus(name.lower())


def _check_unused(coordinator: Coordinator, name: str, message: str) -> None:
    users = [query for query, text in _texts(coordinator).items() if name in list_called_functions(text)]
    if users:
        shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
        raise NameTakenError(message, detail=f"queries that call it: {shown}", hint="remove them first, or choose another name")


def _texts(coordinator: Coordinator) -> dict[str, str]:
    """Return the SQL of all live and queued queries, by name."""
    logged = [from_json(value) for value in (coordinator.unfinished or {"commands": ()})["commands"]]
    queued = [*(command for command in logged if isinstance(command, Add)), *coordinator.requests.additions()]
    return {query.name: query.sql for query in coordinator.state.live()} | {add.name: add.sql for add in queued}
