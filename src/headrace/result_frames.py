"""Results as frames of other libraries, for local and remote queries alike."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import HeadraceError


class _HasResults(Protocol):
    """The member of a query that the mixin uses."""

    def results(self) -> pa.Table: ...


class ResultFrames:
    """Mixin for queries: the rows emitted so far, as a frame."""

    def to_arrow(self: _HasResults) -> pa.Table:
        """Return all rows that the query has emitted so far, as an Arrow table; the same as `results`."""
        return self.results()

    def to_pandas(self: _HasResults) -> Any:
        """Return all rows that the query has emitted so far, as a pandas DataFrame."""
        return self.results().to_pandas()

    def to_polars(self: _HasResults) -> Any:
        """Return all rows that the query has emitted so far, as a polars DataFrame.

        Raises HeadraceError if polars is not installed.
        """
        try:
            import polars as pl  # noqa: PLC0415  an optional dependency
        except ModuleNotFoundError as error:
            raise HeadraceError(
                "to_polars() needs polars, which is not installed",
                hint="pip install polars; or use to_pandas() or to_arrow()",
            ) from error
        return pl.from_arrow(self.results())
