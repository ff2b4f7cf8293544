"""How one windowed aggregation is spelled for each engine.

    headrace   HOP(s, size, slide) in FROM; window_start, window_end, keys, aggregates
    spark      GROUP BY …, window(time, size, slide); the same outputs
    flink      TABLE(HOP(TABLE s, DESCRIPTOR(time), slide, size)); window_end, keys, aggregates. Flink refuses a size that is
               no multiple of the slide: there is no text then
    duckdb     the rows of exactly ONE window are in a table named as the stream, and the only parameter `?` is the window's
               end; window_end, keys, aggregates

Windows are aligned to 1970-01-01T00:00Z in all of them, and a window without rows gives no row. Sums of integers are 64 bit
everywhere: Flink's SUM would keep the type of its argument, DuckDB's would be wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.bench.queries.shape import Measure, Shape

SECOND = 1_000_000
FLINK_SUM, DUCKDB_SUM = "SUM(CAST({} AS BIGINT))", "CAST(SUM({}) AS BIGINT)"
_SPANS = ((SECOND, "seconds"), (1_000, "milliseconds"), (1, "microseconds"))
_INTERVALS = ((86_400, "DAY"), (3_600, "HOUR"), (60, "MINUTE"), (1, "SECOND"))
_FLINK_DIGITS = 2  # of an interval's number, unless it says more

Quote = Callable[[str], str]


def plain(name: str) -> str:
    """Return a name as headrace and Spark take it."""
    return name


def ticked(name: str) -> str:
    """Return a name as Flink takes it, reserved word or not."""
    return f"`{name}`"


def quoted(name: str) -> str:
    """Return a name as DuckDB takes it, reserved word or not."""
    return f'"{name}"'


def span(length_us: int) -> str:
    """Return a length of time as headrace and Spark write it."""
    unit, name = next((unit, name) for unit, name in _SPANS if length_us % unit == 0)
    return f"{length_us // unit} {name}"


def interval(length_us: int) -> str:
    """Return a length of time as Flink writes it, in the largest unit that divides it."""
    seconds, rest = divmod(length_us, SECOND)
    if rest:
        return f"INTERVAL '{length_us / SECOND:.6f}' SECOND{_digits(seconds)}"
    unit, name = next((unit, name) for unit, name in _INTERVALS if seconds % unit == 0)
    return f"INTERVAL '{seconds // unit}' {name}{_digits(seconds // unit)}"


def _digits(number: int) -> str:
    count = len(str(number))
    return f"({count})" if count > _FLINK_DIGITS else ""


def select(outputs: Iterable[str], source: str, where: str = "", group: Sequence[str] = (), having: str = "") -> str:
    """Return a SELECT of these parts, without those that are empty."""
    parts = [f"SELECT {', '.join(outputs)} FROM {source}"]  # noqa: S608  nothing in it comes from outside
    parts += [f"WHERE {where}"] if where else []
    parts += [f"GROUP BY {', '.join(group)}"] if group else []
    parts += [f"HAVING {having}"] if having else []
    return " ".join(parts)


def headrace_source(stream: str, size_us: int, slide_us: int) -> str:
    """Return the windows of a stream in headrace's FROM."""
    if size_us == slide_us:
        return f"TUMBLE({stream}, '{span(size_us)}')"
    return f"HOP({stream}, '{span(size_us)}', '{span(slide_us)}')"


def spark_window(size_us: int, slide_us: int) -> str:
    """Return Spark's grouping by windows of the column `time`."""
    slide = "" if size_us == slide_us else f", '{span(slide_us)}'"
    return f"window(time, '{span(size_us)}'{slide})"


def flink_source(stream: str, size_us: int, slide_us: int) -> str:
    """Return the windows of a table in Flink's FROM; only for what `flink_takes`."""
    table = f"TABLE {ticked(stream)}, DESCRIPTOR({ticked('time')})"
    if size_us == slide_us:
        return f"TABLE(TUMBLE({table}, {interval(size_us)}))"
    return f"TABLE(HOP({table}, {interval(slide_us)}, {interval(size_us)}))"


def flink_takes(size_us: int, slide_us: int) -> bool:
    """Tell whether Flink has such windows."""
    return size_us % slide_us == 0


def measure(value: Measure, quote: Quote, total: str = "SUM({})") -> str:
    """Return an aggregate with its name; `total` is how the engine spells the sum of an INT column in 64 bit."""
    argument = "*" if value.column is None else quote(value.column)
    wide = value.integer and value.function == "SUM"
    return f"{total.format(argument) if wide else f'{value.function}({argument})'} AS {quote(value.name)}"


def _outputs(shape: Shape, quote: Quote, total: str = "SUM({})") -> list[str]:
    return [*map(quote, shape.keys), *(measure(value, quote, total) for value in shape.aggregates)]


def _where(shape: Shape, quote: Quote) -> str:
    return "" if shape.predicate is None else shape.predicate.sql(quote)


def headrace(shape: Shape, size_us: int, slide_us: int) -> str:
    """Return the text headrace takes."""
    outputs = ["window_start", "window_end", *_outputs(shape, plain)]
    return select(outputs, headrace_source(shape.stream, size_us, slide_us), _where(shape, plain), shape.keys)


def spark(shape: Shape, size_us: int, slide_us: int) -> str:
    """Return the text Spark takes; keys stand first in GROUP BY, where other parsers expect a name."""
    outputs = ["window.start AS window_start", "window.end AS window_end", *_outputs(shape, plain)]
    return select(outputs, shape.stream, _where(shape, plain), [*shape.keys, spark_window(size_us, slide_us)])


def flink(shape: Shape, size_us: int, slide_us: int) -> str:
    """Return the text Flink takes."""
    outputs = ["window_end", *_outputs(shape, ticked, FLINK_SUM)]
    group = ["window_start", "window_end", *map(ticked, shape.keys)]
    return select(outputs, flink_source(shape.stream, size_us, slide_us), _where(shape, ticked), group)


def duckdb(shape: Shape) -> str:
    """Return the text DuckDB takes, over the rows of one window."""
    outputs = ["? AS window_end", *_outputs(shape, quoted, DUCKDB_SUM)]
    having = "" if shape.keys else "COUNT(*) > 0"
    return select(outputs, quoted(shape.stream), _where(shape, quoted), [*map(quoted, shape.keys)], having)
