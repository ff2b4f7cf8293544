"""The queries that failed in a task: an error belongs to the query whose expression raised it, other queries go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


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
