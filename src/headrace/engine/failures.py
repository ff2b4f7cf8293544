"""Failures of queries in a task: an error belongs to the queries that use what raised it, other queries go on.

Expressions report errors row by row, and unexpected exceptions for all rows: those fail exactly the queries that evaluate them.
Whatever else raises belongs to an operator, and `blame` names the queries that use it. One query fails alone, in the same task.
Of several, a task cannot tell the culprit: it raises `OperatorError`, and the driver runs the batch again without some of them
(`runtime/isolation`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError, OperatorError, describe_exception


@dataclass(slots=True)
class QueryFailures:
    """Failed queries, each with the message of its first failure; other queries are not affected."""

    messages: dict[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether any query failed."""
        return bool(self.messages)

    def add(self, query: int, message: str) -> None:
        """Record a failure; the first message of a query wins."""
        self.messages.setdefault(query, message)

    def add_rows(self, queries: npt.NDArray[np.int64], message: str) -> None:
        """Record the same failure for the queries of several rows."""
        for query in np.unique(queries).tolist():
            self.add(query, message)


@contextlib.contextmanager
def blame(operator: str, queries: Iterable[int], failures: QueryFailures | None = None) -> Iterator[None]:
    """Attribute an unexpected exception in the block to the queries that use an operator.

    With `failures`, a single query fails there and the task goes on; otherwise `OperatorError` is raised. Any query may have
    taken the memory that another one lacks, so a lack of memory names no query. Errors of files, sources and checkpoints are
    not the fault of a query: they pass.
    """
    try:
        yield
    except MemoryError as problem:
        raise OperatorError(f"{operator} ran out of memory", detail=describe_exception(problem)) from problem
    except (HeadraceError, OSError):
        raise
    except Exception as problem:
        users = tuple(dict.fromkeys(queries))
        message = f"{operator} failed: {describe_exception(problem)}"
        if failures is None or len(users) != 1:
            raise OperatorError(message, queries=users) from problem
        failures.add(users[0], message)
