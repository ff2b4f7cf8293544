"""What a session has for those who write queries in Python: flows, and functions of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from headrace.builder import Select
from headrace.fluent import StreamFlow, stream_of
from headrace.runtime.coordinator import Coordinator
from headrace.runtime.registering import drop, register
from headrace.user_function import Function, Types, function_of

QueryText: TypeAlias = str | Select | StreamFlow
"""What can be added: SQL, or a query made of calls, which comes to SQL."""


def text_of(query: QueryText) -> str:
    """Return the SQL."""
    return query if isinstance(query, str) else query.sql


class _Session(Protocol):
    """What is asked of a session."""

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


class Writing:
    """The part of `Session` that is about Python code; nobody else inherits it."""

    def stream(self: _Session, name: str) -> StreamFlow:
        """Return the rows of a stream, to be filtered, windowed, grouped, joined and added; each step is checked."""
        return stream_of(name, self.add, self.check)

    def register_function(
        self: _Session,
        function: Function | str,
        code: Callable[..., Any] | None = None,
        returns: str = "",
        *,
        arguments: Types = None,
    ) -> Function:
        """Let queries call a function: one made by `hr.function`, or a name, what it does, and the type it returns.

        In a recovered session the functions of the checkpoint are there. Another function of a name takes the place of the one
        that is there, unless a query calls that.
        """
        made = function if isinstance(function, Function) else function_of(function, code, returns, arguments)
        self._check_open()
        with self._batch_lock, self._lock:
            register(self._coordinator, made.name, made.code, made.result, made.arguments)
        return made

    def drop_function(self: _Session, name: str) -> None:
        """Let no query call a function any more; refused while one does."""
        self._check_open()
        with self._batch_lock, self._lock:
            drop(self._coordinator, name)
