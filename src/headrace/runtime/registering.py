"""Functions come and go between micro-batches: code is kept in the checkpoint before any query can call it."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import NameTakenError, NotFoundError, SchemaError, SqlError
from headrace.execution.functions import function_path, write_function
from headrace.model.function import Code, UserFunction
from headrace.runtime.backends import pickled
from headrace.runtime.code_digest import digest_of
from headrace.runtime.commands import Add, from_json
from headrace.runtime.coordinator import Coordinator
from headrace.sql.user_functions import called, check_name


def register(
    coordinator: Coordinator, name: str, code: Code, result: pa.DataType, arguments: tuple[pa.DataType | None, ...]
) -> UserFunction:
    """Let queries call a function, from the next `add` on; no micro-batch may run meanwhile.

    The very same function again changes nothing, as after recovery. Another of that name takes its place, unless a query calls
    the one that is there: what that query means must not change.
    """
    try:
        check_name(name)
    except SqlError as problem:
        raise SchemaError(problem.message, hint=problem.hint) from None
    known = coordinator.state.functions
    digest = digest_of(name, code, [kind and str(kind) for kind in arguments], str(result))
    made = UserFunction(name.lower(), digest.text, arguments, result)
    if known.offered.get(made.name) == made:
        return made
    if made.name in known.offered:
        _check_unused(coordinator, made.name, f"function '{made.name}' is already there, and does something else")
    if not function_path(coordinator.checkpoint.path, made.tag).exists():
        write_function(coordinator.checkpoint.path, made.tag, pickled(made.name, code, digest.modules))
    coordinator.state.functions = known.plus(made)
    return made


def drop(coordinator: Coordinator, name: str) -> None:
    """Let no query call a function any more; refused while one does."""
    known = coordinator.state.functions
    if name.lower() not in known.offered:
        raise NotFoundError(f"function '{name}' is not there", detail=f"functions: {', '.join(sorted(known.offered)) or 'none'}")
    _check_unused(coordinator, name.lower(), f"function '{name}' is in use")
    coordinator.state.functions = known.minus(name.lower())


def _check_unused(coordinator: Coordinator, name: str, message: str) -> None:
    users = [query for query, text in _texts(coordinator).items() if name in called(text)]
    if users:
        shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
        raise NameTakenError(message, detail=f"queries that call it: {shown}", hint="remove them first, or choose another name")


def _texts(coordinator: Coordinator) -> dict[str, str]:
    """Return the texts of all queries that are live, or wait to be, by name."""
    logged = [from_json(one) for one in (coordinator.unfinished or {"commands": ()})["commands"]]
    waiting = [*(one for one in logged if isinstance(one, Add)), *coordinator.requests.additions()]
    return {one.name: one.sql for one in coordinator.state.live()} | {one.name: one.sql for one in waiting}
