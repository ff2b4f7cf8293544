"""Render a windowed aggregation in the SQL dialect of each engine.

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

from collections.abc import Callable, Iterable, Sequence

from headrace.bench.queries.shape import Measure, Shape

SECOND = 1_000_000
FLINK_SUM, DUCKDB_SUM = "SUM(CAST({} AS BIGINT))", "CAST(SUM({}) AS BIGINT)"
_SPANS = ((SECOND, "seconds"), (1_000, "milliseconds"), (1, "microseconds"))
_INTERVALS = ((86_400, "DAY"), (3_600, "HOUR"), (60, "MINUTE"), (1, "SECOND"))
_FLINK_DIGITS = 2  # digits of an interval without an explicit precision

Quote = Callable[[str], str]


def plain(name: str) -> str:
    """Return an identifier unquoted, for headrace and Spark."""
    return name


def ticked(name: str) -> str:
    """Return an identifier in backticks, for Flink; reserved words are allowed."""
    return f"`{name}`"


def quoted(name: str) -> str:
    """Return an identifier in double quotes, for DuckDB; reserved words are allowed."""
    return f'"{name}"'


def span(length_us: int) -> str:
    """Return a duration literal of headrace and Spark."""
    unit, name = next((unit, name) for unit, name in _SPANS if length_us % unit == 0)
    return f"{length_us // unit} {name}"


def interval(length_us: int) -> str:
    """Return an interval literal of Flink, in the largest unit that divides it."""
    seconds, rest = divmod(length_us, SECOND)
    if rest:
        return f"INTERVAL '{length_us / SECOND:.6f}' SECOND{_digits(seconds)}"
    unit, name = next((unit, name) for unit, name in _INTERVALS if seconds % unit == 0)
    return f"INTERVAL '{seconds // unit}' {name}{_digits(seconds // unit)}"


def _digits(number: int) -> str:
    digits = len(str(number))
    return f"({digits})" if digits > _FLINK_DIGITS else ""


def select(outputs: Iterable[str], source: str, where: str = "", group: Sequence[str] = (), having: str = "") -> str:
    """Return a SELECT statement without the clauses that are empty."""
    clauses = [f"SELECT {', '.join(outputs)} FROM {source}"]  # noqa: S608  no external input
    clauses += [f"WHERE {where}"] if where else []
    clauses += [f"GROUP BY {', '.join(group)}"] if group else []
    clauses += [f"HAVING {having}"] if having else []
    return " ".join(clauses)


def headrace_source(stream: str, size_us: int, slide_us: int) -> str:
    """Return the window function of headrace's FROM clause."""
    if size_us == slide_us:
        return f"TUMBLE({stream}, '{span(size_us)}')"
    return f"HOP({stream}, '{span(size_us)}', '{span(slide_us)}')"


def spark_window(size_us: int, slide_us: int) -> str:
    """Return Spark's window expression over the column `time`."""
    slide = "" if size_us == slide_us else f", '{span(slide_us)}'"
    return f"window(time, '{span(size_us)}'{slide})"


def flink_source(stream: str, size_us: int, slide_us: int) -> str:
    """Return the window function of Flink's FROM clause; the window must satisfy `is_flink_window`."""
    table = f"TABLE {ticked(stream)}, DESCRIPTOR({ticked('time')})"
    if size_us == slide_us:
        return f"TABLE(TUMBLE({table}, {interval(size_us)}))"
    return f"TABLE(HOP({table}, {interval(slide_us)}, {interval(size_us)}))"


def flink_takes(size_us: int, slide_us: int) -> bool:
    """Return whether Flink supports the window: its size must be a multiple of its slide."""
    return size_us % slide_us == 0


def measure(aggregate: Measure, quote: Quote, total: str = "SUM({})") -> str:
    """Return an aggregate with its alias; `total` is the engine's template for the 64-bit sum of an INT column."""
    argument = "*" if aggregate.column is None else quote(aggregate.column)
    is_integer_sum = aggregate.integer and aggregate.function == "SUM"
    return f"{total.format(argument) if is_integer_sum else f'{aggregate.function}({argument})'} AS {quote(aggregate.name)}"


def _outputs(shape: Shape, quote: Quote, total: str = "SUM({})") -> list[str]:
    return [*map(quote, shape.keys), *(measure(aggregate, quote, total) for aggregate in shape.aggregates)]


def _where(shape: Shape, quote: Quote) -> str:
    return "" if shape.predicate is None else shape.predicate.sql(quote)


def headrace(shape: Shape, size_us: int, slide_us: int) -> str:
    """Return the aggregation in headrace SQL."""
    outputs = ["window_start", "window_end", *_outputs(shape, plain)]
    return select(outputs, headrace_source(shape.stream, size_us, slide_us), _where(shape, plain), shape.keys)


def spark(shape: Shape, size_us: int, slide_us: int) -> str:
    """Return the aggregation in Spark SQL; GROUP BY starts with the keys because other parsers expect a name there."""
    outputs = ["window.start AS window_start", "window.end AS window_end", *_outputs(shape, plain)]
    return select(outputs, shape.stream, _where(shape, plain), [*shape.keys, spark_window(size_us, slide_us)])


def flink(shape: Shape, size_us: int, slide_us: int) -> str:
    """Return the aggregation in Flink SQL."""
    outputs = ["window_end", *_outputs(shape, ticked, FLINK_SUM)]
    group = ["window_start", "window_end", *map(ticked, shape.keys)]
    return select(outputs, flink_source(shape.stream, size_us, slide_us), _where(shape, ticked), group)


def duckdb(shape: Shape) -> str:
    """Return the aggregation in DuckDB SQL, over the rows of one window."""
    outputs = ["? AS window_end", *_outputs(shape, quoted, DUCKDB_SUM)]
    having = "" if shape.keys else "COUNT(*) > 0"
    return select(outputs, quoted(shape.stream), _where(shape, quoted), [*map(quoted, shape.keys)], having)
