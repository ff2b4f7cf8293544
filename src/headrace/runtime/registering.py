"""Register and drop UDFs between micro-batches. The checkpoint stores the code before any query can call it."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import NameTakenError, NotFoundError, SchemaError, SqlError
from headrace.execution.functions import get_udf_path, write_udf
from headrace.model.function import UdfCode, UserFunction
from headrace.runtime.backends import pickle_function
from headrace.runtime.code_digest import digest_function
from headrace.runtime.commands import AddQuery, command_from_json
from headrace.runtime.coordinator import Coordinator
from headrace.sql.user_functions import check_function_name, list_called_functions


def register_udf(
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
    registered = coordinator.state.udfs
    digest = digest_function(name, code, [kind and str(kind) for kind in arguments], str(result))
    udf = UserFunction(name.lower(), digest.text, arguments, result)
    if registered.active.get(udf.name) == udf:
        return udf
    if udf.name in registered.active:
        _check_unused(coordinator, udf.name, f"function '{udf.name}' is already registered with different code or types")
    if not get_udf_path(coordinator.checkpoint.path, udf.tag).exists():
        write_udf(coordinator.checkpoint.path, udf.tag, pickle_function(udf.name, code, digest.modules))
    coordinator.state.udfs = registered.with_udf(udf)
    return udf


def drop_udf(coordinator: Coordinator, name: str) -> None:
    """Drop a UDF; raises NotFoundError if it is not registered, and NameTakenError while a query calls it."""
    registered = coordinator.state.udfs
    if name.lower() not in registered.active:
        raise NotFoundError(
            f"function '{name}' is not registered", detail=f"functions: {', '.join(sorted(registered.active)) or 'none'}"
        )
    _check_unused(coordinator, name.lower(), f"function '{name}' is in use")
    coordinator.state.udfs = registered.without_udf(name.lower())


def _check_unused(coordinator: Coordinator, name: str, message: str) -> None:
    users = [query for query, text in _collect_query_texts(coordinator).items() if name in list_called_functions(text)]
    if users:
        shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
        raise NameTakenError(message, detail=f"queries that call it: {shown}", hint="remove them first, or choose another name")


def _collect_query_texts(coordinator: Coordinator) -> dict[str, str]:
    """Return the SQL of all live and queued queries, by name."""
    logged = [command_from_json(value) for value in (coordinator.unfinished_entry or {"commands": ()})["commands"]]
    queued = [*(command for command in logged if isinstance(command, AddQuery)), *coordinator.command_queue.list_additions()]
    return {query.name: query.sql for query in coordinator.state.live_queries()} | {add.name: add.sql for add in queued}
