"""The methods of `Session` for queries written in Python: stream flows and UDFs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from headrace.builder import Select
from headrace.fluent import StreamFlow, create_flow
from headrace.runtime.coordinator import Coordinator
from headrace.runtime.registering import drop_udf, register_udf
from headrace.user_function import ArgumentTypes, Function, build_function

QueryText: TypeAlias = str | Select | StreamFlow
"""A query as users pass it: SQL text, or a query of the DSL, which is translated to SQL."""


def sql_of(query: QueryText) -> str:
    """Return the SQL text of a query."""
    return query if isinstance(query, str) else query.sql


class _DslHost(Protocol):
    """The members of `Session` that the mixin uses."""

    _coordinator: Coordinator

    @property
    def _batch_lock(self) -> AbstractContextManager[Any]: ...
    @property
    def _lock(self) -> AbstractContextManager[Any]: ...
    @property
    def add(self) -> Callable[..., Any]: ...
    @property
    def check(self) -> Callable[[str], Any]: ...
    def _check_open(self) -> None: ...


class DslMethods:
    """Mixin for `Session` only: stream flows and UDFs."""

    def stream(self: _DslHost, name: str) -> StreamFlow:
        """Return a flow of the rows of a stream, to filter, window, group, join and add as a query.

        Every step of the flow is checked at once and raises SqlError if it is invalid.
        """
        return create_flow(name, self.add, self.check)

    def register_function(
        self: _DslHost,
        function: Function | str,
        code: Callable[..., Any] | None = None,
        returns: str = "",
        *,
        arguments: ArgumentTypes = None,
    ) -> Function:
        """Register a function (UDF) that queries can call, and return it.

        `function` is a function made by `hr.function`; or a name, together with `code`, the type that it `returns`, and
        optionally the types of its `arguments`, as for `hr.function`. A recovered session already has the functions of its
        checkpoint. A new function replaces a registered one of the same name.

        Raises NameTakenError if a query calls the function to replace, and SchemaError for an invalid name or type, or for code
        that cannot be stored.
        """
        registered = function if isinstance(function, Function) else build_function(function, code, returns, arguments)
        self._check_open()
        with self._batch_lock, self._lock:
            register_udf(self._coordinator, registered.name, registered.code, registered.result, registered.arguments)
        return registered

    def drop_function(self: _DslHost, name: str) -> None:
        """Drop a registered function; raises NotFoundError if it is not registered, and NameTakenError while a query calls it."""
        self._check_open()
        with self._batch_lock, self._lock:
            drop_udf(self._coordinator, name)
