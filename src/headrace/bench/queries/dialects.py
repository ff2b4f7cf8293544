"""A windowed aggregation, described by keys, aggregates and a predicate, and rendered in the SQL dialect of each engine.

    headrace   HOP(s, size, slide) in FROM; window_start, window_end, keys, aggregates
    spark      GROUP BY …, window(time, size, slide); the same outputs
    flink      TABLE(HOP(TABLE s, DESCRIPTOR(time), slide, size)); window_end, keys, aggregates. Flink rejects a size that is
               not a multiple of the slide; such a query has no Flink text
    duckdb     a table named like the stream holds the rows of exactly ONE window, and the only parameter `?` is the end of the
               window; window_end, keys, aggregates

All dialects align windows to 1970-01-01T00:00Z, and a window without rows has no result. Integer sums are cast to 64 bit:
Flink's SUM keeps the type of its argument, DuckDB's SUM returns a wider one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError

AGGREGATE_FUNCTIONS = ("SUM", "COUNT", "AVG", "MIN", "MAX")
COMPARISON_OPERATORS = ("<", ">", "=", "<=", ">=", "<>")


@dataclass(frozen=True, slots=True)
class BenchAggregate:
    """An aggregate: `column` is None for COUNT(*); `integer` is true if the column holds integers."""

    function: str
    column: str | None
    name: str
    integer: bool = False

    def __post_init__(self) -> None:
        """Reject functions that some engine lacks."""
        if self.function not in AGGREGATE_FUNCTIONS:
            raise HeadraceError(f"unknown aggregate '{self.function}'", detail=f"aggregates: {', '.join(AGGREGATE_FUNCTIONS)}")
        if self.column is None and self.function != "COUNT":
            raise HeadraceError(f"aggregate '{self.function}' needs a column")


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """A comparison of a column with a number."""

    column: str
    operator: str
    value: float

    def __post_init__(self) -> None:
        """Reject operators that some engine lacks."""
        if self.operator not in COMPARISON_OPERATORS:
            raise HeadraceError(f"unknown operator '{self.operator}'", detail=f"operators: {', '.join(COMPARISON_OPERATORS)}")

    def to_sql(self, quote: Callable[[str], str]) -> str:
        """Return the condition in SQL; integers stay integer literals."""
        return f"{quote(self.column)} {self.operator} {self.value!r}"


@dataclass(frozen=True, slots=True)
class AggregationShape:
    """Aggregates by keys over the rows of a stream that satisfy the predicate.

    With `minus`, a shape with the same keys, the result has a row for each key that both have: the only aggregate of this shape
    minus the only aggregate of the other.
    """

    stream: str
    keys: tuple[str, ...]
    aggregates: tuple[BenchAggregate, ...]
    predicate: ColumnComparison | None = None
    minus: AggregationShape | None = None

    def __post_init__(self) -> None:
        """Reject an undefined difference."""
        if self.minus is None:
            return
        if self.keys != self.minus.keys or {len(self.aggregates), len(self.minus.aggregates)} != {1}:
            raise HeadraceError("a difference needs the same keys and one aggregate on both sides")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AggregationShape:
        """Return the shape from the JSON form of `BenchQuery.to_json`."""
        predicate, minus = value["predicate"], value["minus"]
        return cls(
            value["stream"],
            tuple(value["keys"]),
            tuple(BenchAggregate(**aggregate) for aggregate in value["aggregates"]),
            None if predicate is None else ColumnComparison(**predicate),
            None if minus is None else cls.from_json(minus),
        )


SECOND_US = 1_000_000
FLINK_BIGINT_SUM, DUCKDB_BIGINT_SUM = "SUM(CAST({} AS BIGINT))", "CAST(SUM({}) AS BIGINT)"
_DURATION_UNITS = ((SECOND_US, "seconds"), (1_000, "milliseconds"), (1, "microseconds"))
_INTERVAL_UNITS = ((86_400, "DAY"), (3_600, "HOUR"), (60, "MINUTE"), (1, "SECOND"))
_FLINK_DEFAULT_DIGITS = 2  # digits of an interval without an explicit precision

NameQuoter = Callable[[str], str]


def keep_name(name: str) -> str:
    """Return an identifier unquoted, for headrace and Spark."""
    return name


def backtick_name(name: str) -> str:
    """Return an identifier in backticks, for Flink; reserved words are allowed."""
    return f"`{name}`"


def quote_name(name: str) -> str:
    """Return an identifier in double quotes, for DuckDB; reserved words are allowed."""
    return f'"{name}"'


def format_duration(length_us: int) -> str:
    """Return a duration literal of headrace and Spark."""
    unit, name = next((unit, name) for unit, name in _DURATION_UNITS if length_us % unit == 0)
    return f"{length_us // unit} {name}"


def format_interval(length_us: int) -> str:
    """Return an interval literal of Flink, in the largest unit that divides it."""
    seconds, rest = divmod(length_us, SECOND_US)
    if rest:
        return f"INTERVAL '{length_us / SECOND_US:.6f}' SECOND{_format_precision(seconds)}"
    unit, name = next((unit, name) for unit, name in _INTERVAL_UNITS if seconds % unit == 0)
    return f"INTERVAL '{seconds // unit}' {name}{_format_precision(seconds // unit)}"


def _format_precision(number: int) -> str:
    digits = len(str(number))
    return f"({digits})" if digits > _FLINK_DEFAULT_DIGITS else ""


def build_select(outputs: Iterable[str], source: str, where: str = "", group: Sequence[str] = (), having: str = "") -> str:
    """Return a SELECT statement without the clauses that are empty."""
    clauses = [f"SELECT {', '.join(outputs)} FROM {source}"]  # noqa: S608  no external input
    clauses += [f"WHERE {where}"] if where else []
    clauses += [f"GROUP BY {', '.join(group)}"] if group else []
    clauses += [f"HAVING {having}"] if having else []
    return " ".join(clauses)


def build_headrace_source(stream: str, size_us: int, slide_us: int) -> str:
    """Return the window function of headrace's FROM clause."""
    if size_us == slide_us:
        return f"TUMBLE({stream}, '{format_duration(size_us)}')"
    return f"HOP({stream}, '{format_duration(size_us)}', '{format_duration(slide_us)}')"


def build_spark_window(size_us: int, slide_us: int) -> str:
    """Return Spark's window expression over the column `time`."""
    slide = "" if size_us == slide_us else f", '{format_duration(slide_us)}'"
    return f"window(time, '{format_duration(size_us)}'{slide})"


def build_flink_source(stream: str, size_us: int, slide_us: int) -> str:
    """Return the window function of Flink's FROM clause; the window must satisfy `is_flink_window`."""
    table = f"TABLE {backtick_name(stream)}, DESCRIPTOR({backtick_name('time')})"
    if size_us == slide_us:
        return f"TABLE(TUMBLE({table}, {format_interval(size_us)}))"
    return f"TABLE(HOP({table}, {format_interval(slide_us)}, {format_interval(size_us)}))"


def is_flink_window(size_us: int, slide_us: int) -> bool:
    """Return whether Flink supports the window: its size must be a multiple of its slide."""
    return size_us % slide_us == 0


def render_aggregate(aggregate: BenchAggregate, quote: NameQuoter, total: str = "SUM({})") -> str:
    """Return an aggregate with its alias; `total` is the engine's template for the 64-bit sum of an INT column."""
    argument = "*" if aggregate.column is None else quote(aggregate.column)
    is_integer_sum = aggregate.integer and aggregate.function == "SUM"
    return f"{total.format(argument) if is_integer_sum else f'{aggregate.function}({argument})'} AS {quote(aggregate.name)}"


def _render_outputs(shape: AggregationShape, quote: NameQuoter, total: str = "SUM({})") -> list[str]:
    return [*map(quote, shape.keys), *(render_aggregate(aggregate, quote, total) for aggregate in shape.aggregates)]


def _render_predicate(shape: AggregationShape, quote: NameQuoter) -> str:
    return "" if shape.predicate is None else shape.predicate.to_sql(quote)


def render_headrace_aggregation(shape: AggregationShape, size_us: int, slide_us: int) -> str:
    """Return the aggregation in headrace SQL."""
    outputs = ["window_start", "window_end", *_render_outputs(shape, keep_name)]
    return build_select(
        outputs, build_headrace_source(shape.stream, size_us, slide_us), _render_predicate(shape, keep_name), shape.keys
    )


def render_spark_aggregation(shape: AggregationShape, size_us: int, slide_us: int) -> str:
    """Return the aggregation in Spark SQL; GROUP BY starts with the keys because other parsers expect a name there."""
    outputs = ["window.start AS window_start", "window.end AS window_end", *_render_outputs(shape, keep_name)]
    return build_select(
        outputs, shape.stream, _render_predicate(shape, keep_name), [*shape.keys, build_spark_window(size_us, slide_us)]
    )


def render_flink_aggregation(shape: AggregationShape, size_us: int, slide_us: int) -> str:
    """Return the aggregation in Flink SQL."""
    outputs = ["window_end", *_render_outputs(shape, backtick_name, FLINK_BIGINT_SUM)]
    group = ["window_start", "window_end", *map(backtick_name, shape.keys)]
    return build_select(
        outputs, build_flink_source(shape.stream, size_us, slide_us), _render_predicate(shape, backtick_name), group
    )


def render_duckdb_aggregation(shape: AggregationShape) -> str:
    """Return the aggregation in DuckDB SQL, over the rows of one window."""
    outputs = ["? AS window_end", *_render_outputs(shape, quote_name, DUCKDB_BIGINT_SUM)]
    having = "" if shape.keys else "COUNT(*) > 0"
    return build_select(
        outputs, quote_name(shape.stream), _render_predicate(shape, quote_name), [*map(quote_name, shape.keys)], having
    )
