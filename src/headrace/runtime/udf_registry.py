"""Register and drop the UDFs of a session between micro-batches, and digest their code.

The checkpoint stores the code of a UDF before any query can call it.

Digests are equal in every process for the same function, and different after any change to its behaviour. The digest covers
the compiled code with constants and defaults; every value that the function refers to by global name or closure, including
functions and classes, to any depth; and the Python version, because it decides what the code means. Libraries contribute their
names, not their content; file names and paths contribute nothing.
"""

from __future__ import annotations

import copyreg
import hashlib
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pyarrow as pa

from headrace.errors import CheckpointError, NameTakenError, NotFoundError, SchemaError, SessionError, SqlError
from headrace.model.function import UdfCode, UserFunction, udf_name
from headrace.runtime.backend import pickle_function
from headrace.runtime.commands import AddQuery
from headrace.runtime.coordinator import Coordinator
from headrace.sql.functions import check_function_name, list_called_functions
from headrace.storage.udf_store import get_udf_key, write_udf

_DIGEST_LENGTH = 16
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...))
_CONSTANT_TYPES = (tuple, frozenset, CodeType)
_CODE_FLAGS_MASK = 0xFFFF  # the flags above are those of __future__; their effects already show in the compiled code
_OWN_PACKAGE = "headrace"
_IGNORED_ATTRIBUTES = frozenset({
    "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__qualname__", "__static_attributes__",
    "__weakref__",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class CodeDigest:
    """The digest as text, and the user modules that define the function's code; libraries are not included."""

    text: str
    modules: tuple[ModuleType, ...]


def digest_function(name: str, *parts: Any) -> CodeDigest:
    """Return the digest of a function, given as its code and types; raises SchemaError if it refers to unpicklable values."""
    reader = _CodeHasher()
    try:
        reader.add_words(platform.python_version_tuple()[:2])
        for part in parts:
            reader.add_value(part)
    except (TypeError, RecursionError, AttributeError) as error:
        raise SchemaError(
            f"function '{name}' cannot be stored", detail=str(error), hint="it must not refer to files, locks or sessions"
        ) from error
    return CodeDigest(reader.digest.hexdigest()[:_DIGEST_LENGTH], tuple(reader.modules.values()))


def is_library(module: str | None) -> bool:
    """Return whether a module is installed, so that workers can import it, rather than the user's own."""
    root = (module or "builtins").partition(".")[0]
    if root == "__main__":
        return False
    if root in sys.stdlib_module_names or root == _OWN_PACKAGE:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@dataclass(slots=True)
class _CodeHasher:
    """Adds values of any kind to one hash; a value that was added before contributes only a reference."""

    digest: Any = field(default_factory=hashlib.sha256)
    modules: dict[str, ModuleType] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)

    def add_words(self, *words: Any) -> None:
        self.digest.update(repr(words).encode())

    def add_value(self, value: Any) -> None:
        if isinstance(value, _PLAIN_TYPES):
            self.add_words(type(value).__name__, value)
        elif isinstance(value, ModuleType):
            self.add_words("module", value.__name__)
        elif isinstance(value, _CONSTANT_TYPES):  # the compiler may represent equal constants by one object or by several
            self._add_compound(value)
        elif id(value) in self.seen:
            self.add_words("again", list(self.seen).index(id(value)))
        else:
            self.seen[id(value)] = value  # the reference keeps the id from being reused
            self._add_compound(value)

    def _add_compound(self, value: Any) -> None:
        if isinstance(value, FunctionType | type) and is_library(value.__module__):
            self.add_words("library", value.__module__, value.__qualname__)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, CellType):
            self._add_all("cell", _cell_contents(value))
        elif isinstance(value, MethodType | staticmethod | classmethod):
            self._add_all("method", (type(value).__name__, value.__func__, getattr(value, "__self__", None)))
        elif isinstance(value, property):
            self._add_all("property", (value.fget, value.fset))
        elif isinstance(value, tuple | list):
            self._add_all(type(value).__name__, value)
        elif isinstance(value, dict):
            self._add_all("dict", [part for item in value.items() for part in item])
        elif isinstance(value, set | frozenset):
            self.add_words("set", sorted(_digest_value(member) for member in value))
        else:
            self._add_object(value)

    def _add_all(self, kind: str, parts: Any) -> None:
        self.add_words(kind, len(parts))
        for part in parts:
            self.add_value(part)

    def _add_function(self, function: FunctionType) -> None:
        self._record_module(function.__module__)
        self._add_all("function", (function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__))
        namespace = function.__globals__
        for name in sorted(set(_iter_global_names(function.__code__)) & set(namespace)):
            self.add_words("global", name)
            self.add_value(namespace[name])

    def _add_code(self, code: CodeType) -> None:
        self.add_words(code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.add_words(code.co_flags & _CODE_FLAGS_MASK, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._add_all("constants", code.co_consts)

    def _add_class(self, kind: type) -> None:
        self._record_module(kind.__module__)
        self.add_words("class", kind.__qualname__)
        self._add_all("bases", kind.__bases__)
        for name, value in vars(kind).items():
            if name not in _IGNORED_ATTRIBUTES and type(value).__name__ not in ("member_descriptor", "getset_descriptor"):
                self.add_words(name)
                self.add_value(value)

    def _add_object(self, value: Any) -> None:
        """Add any other value by its pickle reduction."""
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            self.add_words("named", getattr(value, "__module__", None), reduced)
            return
        self._add_all("object", [list(part) if isinstance(part, Iterator) else part for part in reduced])

    def _record_module(self, module: str | None) -> None:
        loaded = sys.modules.get(module or "")
        if loaded is not None and module != "__main__":
            self.modules[loaded.__name__] = loaded


def _digest_value(value: Any) -> str:
    reader = _CodeHasher()
    reader.add_value(value)
    return str(reader.digest.hexdigest())


def _iter_global_names(code: CodeType) -> Iterator[str]:
    """Yield the names by which the code, or functions nested in it, may refer to globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_global_names(constant)


def _cell_contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # the cell is still empty
        return ()


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
    if coordinator.checkpoint.store.find_size(get_udf_key(udf.tag)) is None:
        write_udf(coordinator.checkpoint.store, udf.tag, pickle_function(udf.name, code, digest.modules))
    coordinator.state.udfs = registered.with_udf(udf)
    return udf


def check_no_udfs(coordinator: Coordinator) -> None:
    """Check that no function of the checkpoint can be loaded, dropped ones included; raises CheckpointError with their names."""
    tags = coordinator.state.udfs.all_tags
    if tags:
        names = ", ".join(f"'{udf_name(tag)}'" for tag in tags[:5]) + (f" and {len(tags) - 5} more" if len(tags) > 5 else "")
        raise CheckpointError(
            f"checkpoint '{coordinator.checkpoint.location}' has functions, and this session takes none",
            detail=f"functions: {names}",
            hint="allow functions if you trust everybody who can write to the checkpoint, or start with a new one",
        )


def check_udfs_allowed(name: str, *, allowed: bool) -> None:
    """Raise SessionError if a UDF of that name is about to be registered in a session that takes none."""
    if not allowed:
        raise SessionError(f"function '{name}' is refused: this session takes no functions", hint="open it with functions=True")


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
    logged = coordinator.unfinished_entry.commands if coordinator.unfinished_entry else ()
    queued = [*(command for command in logged if isinstance(command, AddQuery)), *coordinator.command_queue.list_additions()]
    return {query.name: query.sql for query in coordinator.state.live_queries()} | {add.name: add.sql for add in queued}
