"""A benchmark query: one question, in the words of every engine that is asked.

`sql` maps a dialect to the text, or has no entry where the engine cannot say it; the adapter of that engine then refuses
the query. `shape` is the structure of the text for a kernel written by hand; a query that has none is refused by it. Names
of streams are table names in all dialects; event time is the column `time`; every result has `window_end`: the end of its
window or, where windows slide with every row, the event time of the newest row it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.bench.queries import dialect
from headrace.bench.queries.shape import Comparison, Measure, Shape
from headrace.errors import HeadraceError

__all__ = ["DIALECTS", "BenchQuery", "Comparison", "Measure", "Shape", "windowed"]

DIALECTS = ("headrace", "spark", "flink", "duckdb")


@dataclass(frozen=True, slots=True)
class BenchQuery:
    """A query with a name, its texts, its window (microseconds) and, if it is plain enough, its structure."""

    name: str
    streams: tuple[str, ...]
    sql: Mapping[str, str]
    size_us: int
    slide_us: int
    shape: Shape | None = None

    def __post_init__(self) -> None:
        """Refuse unknown dialects and windows that are none."""
        unknown = sorted(set(self.sql) - set(DIALECTS))
        if unknown:
            raise HeadraceError(
                f"unknown dialect '{unknown[0]}' in query '{self.name}'", detail=f"dialects: {', '.join(DIALECTS)}"
            )
        if self.size_us < 1 or self.slide_us < 1:
            raise HeadraceError(f"query '{self.name}' has a window of {self.size_us} µs every {self.slide_us} µs")

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes; plain lists and mappings."""
        return {
            "name": self.name,
            "streams": list(self.streams),
            "sql": dict(self.sql),
            "size_us": self.size_us,
            "slide_us": self.slide_us,
            "shape": None if self.shape is None else asdict(self.shape),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BenchQuery:
        """Return the query that `to_json` spelled out."""
        shape = value.get("shape")
        return cls(
            value["name"],
            tuple(value["streams"]),
            dict(value["sql"]),
            value["size_us"],
            value["slide_us"],
            None if shape is None else Shape.from_json(shape),
        )


def windowed(
    name: str,
    stream: str,
    keys: Sequence[str],
    aggregates: Sequence[Measure],
    predicate: Comparison | None,
    size_us: int,
    slide_us: int,
) -> BenchQuery:
    """Return a windowed aggregation in all dialects that have such windows."""
    shape = Shape(stream, tuple(keys), tuple(aggregates), predicate)
    texts = {"headrace": dialect.headrace(shape, size_us, slide_us), "spark": dialect.spark(shape, size_us, slide_us)}
    if dialect.flink_takes(size_us, slide_us):
        texts["flink"] = dialect.flink(shape, size_us, slide_us)
    texts["duckdb"] = dialect.duckdb(shape)
    return BenchQuery(name, (stream,), texts, size_us, slide_us, shape)
