"""Session files: streams and queries in TOML.

    checkpoint = "state"              # optional: a folder, or a URL such as s3://bucket/path
                                      # relative paths, here and below, start at the folder of this file
    rows_per_batch = 100_000          # optional
    partitions = 8                    # optional number of key partitions, or "auto": it follows the cores and the load
    changes_per_batch = 50            # optional: query changes that a micro-batch takes at most
    change_delay = 0.5                # optional: seconds for which query changes wait for more of them
    max_waiting_changes = 1_000       # optional: query changes that may wait; further ones wait for room, or are refused
    change_timeout = 10               # optional: seconds for which they wait for room
    late_materialization = "auto"     # optional: always, never, or auto (by cost): rows of window joins are stored once
    join_slices = "auto"              # optional: whether TUMBLE and HOP joins keep pairs for later windows: auto, kept or found
    join_slices_bytes = 268_435_456   # optional: bytes that these may take in each worker process
    functions = false                 # optional: refuse a checkpoint that has functions, whose code would run here

    [storage]                         # optional: options of object stores; credentials are better in the environment
    endpoint = "http://127.0.0.1:9000"

    [storage."s3://elsewhere"]        # optional: other options for what is below a URL
    endpoint = "https://s3.eu-central-1.amazonaws.com"

    [window_joins]                    # optional: how joins in TUMBLE and HOP windows are planned
    grouping = true                   # and others: see docs/configuration.md

    [sliding_joins]                   # optional: how joins in SLIDING windows are planned
    plan = "auto"                     # auto, ilp, greedy, common, flat, left_deep, chain or merging
    target = "probes"                 # probes, latency or storage
    budget = 1_000_000                # rows that their state stores may have together, as estimated
    sharing = true                    # false: each query has state stores of its own

    [spark]                           # optional, for the Spark back-end
    master = "local[*]"               # also at the top of the file
    exchange = "auto"                 # auto, files or shuffle
    config = {"spark.executor.memory" = "4g"}

    [streams.purchases]
    source = "files"                  # files (the default), rate, tcp or kafka
    path = "data/purchases*.csv"      # a file, a directory or a glob pattern
    schema = "user_id INT, gem_pack INT, price DOUBLE, time TIMESTAMP"   # optional if the files contain a schema
    time = "time"                     # the event-time column
    watermark = "2 seconds"           # delay of the watermark: how far rows may be out of order; default 0 seconds
    max_ahead = "1 hour"              # optional: rows further in the future are dropped and counted
    # also: format = "csv", on_error = "skip_row", dead_letter = "jsonl:rejected", header = true
    #       delimiter = ",", timestamp_format = "%Y-%m-%d %H:%M:%S"

    [streams.ads]
    source = "rate"                   # generated rows
    generator = "ads"                 # purchases, ads or fields
    rows_per_second = 1000
    time = "time"
    # also: rows = 10_000, seed = 0, start_time = 2026-01-01T00:00:00Z, keys = 1000, field_max = 1000
    # from a server: source = "tcp", address = "127.0.0.1:5555", stream = "ads", group = "headrace" (the default)

    [streams.clicks]
    source = "kafka"
    brokers = "127.0.0.1:9092"
    topic = "clicks"
    schema = "user_id INT, price DOUBLE, time TIMESTAMP"
    time = "time"
    options = {"security.protocol" = "SASL_SSL", "sasl.password" = "env:KAFKA_PASSWORD"}   # of librdkafka; secrets by reference
    # also: format = "json", start = "earliest", max_rows_per_batch = 100_000, on_error = "skip_row",
    #       dead_letter = "jsonl:rejected", on_lost = "skip", group = "monitoring",
    #       watermark_by = "partition" (the default of this source), idle = "10 seconds"

    [queries.revenue]
    sql = "SELECT gem_pack, SUM(price) AS revenue FROM TUMBLE(purchases, '5 seconds') GROUP BY gem_pack"
    sink = "parquet:out/revenue"      # memory (the default), console, noop, parquet:DIR, jsonl:DIR, delta:DIR; or a table:
    #      {kind = "kafka", brokers = "127.0.0.1:9092", topic = "revenue", "sasl.password" = "env:KAFKA_PASSWORD"}
    #      kinds with a table: kafka, delta, iceberg, postgres, webhook; several sinks: sinks = ["memory", {…}]
    budget = {output_rows = 1_000_000}   # optional: what the query may use in a micro-batch

Unknown keys and invalid values raise an error that names the key, the file and the allowed values; no key is ignored.
"""

from __future__ import annotations

import glob
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.cli.spark_options import SparkOptions, flatten_settings
from headrace.connectors import SINK_KINDS, Sink, Source, parse_sink
from headrace.connectors.source_options import REQUIRED_OPTIONS, SOURCE_OPTIONS, open_source
from headrace.errors import HeadraceError, SinkError
from headrace.model.budget import QueryBudget
from headrace.model.join_slices import DEFAULT_JOIN_SLICES, JoinSliceOptions
from headrace.model.late_materialization import LateMaterialization
from headrace.model.sliding_join_options import SlidingJoinOptions
from headrace.model.stream import Stream
from headrace.model.time import parse_duration
from headrace.model.window_join_options import WindowJoinOptions
from headrace.runtime.command_queue import CHANGE_TIMEOUT_SECONDS, MAX_WAITING_CHANGES, ChangeSettings
from headrace.runtime.partition_scaling import PartitionSetting, parse_partitions
from headrace.storage.locations import StorageOptions, is_url, parse_location

if TYPE_CHECKING:
    from headrace.session import Session

_KeyTypes = Mapping[str, tuple[type, ...]]

_TOP_KEYS: _KeyTypes = {
    "checkpoint": (str,), "rows_per_batch": (int,), "master": (str,), "partitions": (int, str), "functions": (bool,),
    "changes_per_batch": (int,), "change_delay": (int, float), "max_waiting_changes": (int,), "change_timeout": (int, float),
    "late_materialization": (str,), "window_joins": (dict,), "sliding_joins": (dict,), "spark": (dict,),
    "join_slices": (str,), "join_slices_bytes": (int,),
    "streams": (dict,), "queries": (dict,), "storage": (dict,),
}  # fmt: skip
_CHANGE_KEYS: Mapping[str, Any] = {  # in the order of the fields of `ChangeSettings`, with the defaults
    "changes_per_batch": None,
    "change_delay": 0.0,
    "max_waiting_changes": MAX_WAITING_CHANGES,
    "change_timeout": CHANGE_TIMEOUT_SECONDS,
}
_SPARK_KEYS: _KeyTypes = {"master": (str,), "exchange": (str,), "config": (dict,)}
_SLIDING_JOIN_KEYS: _KeyTypes = {"plan": (str,), "target": (str,), "budget": (int,), "sharing": (bool,)}
_STREAM_KEYS: _KeyTypes = {
    "source": (str,), "time": (str,), "watermark": (str,), "max_ahead": (str,), "watermark_by": (str,), "idle": (str,),
}  # fmt: skip
_QUERY_KEYS: _KeyTypes = {"sql": (str,), "sink": (str, dict), "sinks": (list,), "budget": (dict,)}
_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    datetime: "a date-time",
    list: "an array",
}


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A stream of the file; `options` are those of its source, with absolute paths."""

    name: str
    kind: str
    options: Mapping[str, Any]
    time: str
    watermark: str
    max_ahead: str | None = None
    watermark_by: str | None = None
    idle: str = "10 seconds"

    def open(self, clock: Callable[[], float] | None = None) -> Source:
        """Open the source; only generated streams take a clock."""
        return open_source(self.kind, self.options, clock)

    def declare(self, session: Session, source: Source | None = None) -> None:
        """Declare the stream in a session, over its source if none is given."""
        source = self.open() if source is None else source
        session.create_stream(
            self.name,
            source,
            time=self.time,
            watermark=self.watermark,
            max_ahead=self.max_ahead,
            watermark_by=self.watermark_by,
            idle=self.idle,
        )

    def to_stream(self) -> Stream:
        """Return the stream with its schema; without a declared schema, read it from the first file or the server."""
        max_ahead = None if self.max_ahead is None else parse_duration(self.max_ahead)
        return Stream(self.name, self.open().schema, self.time, parse_duration(self.watermark), max_ahead)


@dataclass(frozen=True, slots=True)
class QueryEntry:
    """A query of the file; `sinks` is empty if the file names none, and `budget` has the limits that it names."""

    name: str
    sql: str
    sinks: tuple[str | Mapping[str, Any], ...]
    budget: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A parsed and checked session file; its SQL is not checked yet."""

    path: Path
    streams: tuple[StreamEntry, ...]
    queries: tuple[QueryEntry, ...]
    checkpoint: str | None = None
    rows_per_batch: int | None = None
    spark: SparkOptions = SparkOptions()  # noqa: RUF009  a frozen value
    functions: bool = True
    storage: StorageOptions = field(default_factory=dict)
    partitions: PartitionSetting | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """How query changes are batched, and how many may wait: arguments of `Session`."""
    sliding_joins: SlidingJoinOptions = SlidingJoinOptions()  # noqa: RUF009  a frozen value
    window_joins: Mapping[str, Any] = field(default_factory=dict)
    """How joins in TUMBLE and HOP windows are planned: an argument of `Session`."""
    late_materialization: LateMaterialization = LateMaterialization.AUTO
    join_slices: JoinSliceOptions = DEFAULT_JOIN_SLICES

    def get_join_arguments(self) -> dict[str, Any]:
        """Return the options of joins as the arguments of `Session`."""
        window_joins = {"window_joins": self.window_joins, "late_materialization": self.late_materialization}
        return {**self.sliding_joins.to_arguments(), **window_joins, **self.join_slices.to_arguments()}

    @staticmethod
    def load(path: Path, *, require_queries: bool = True) -> SessionFile:
        """Read a file; raises a HeadraceError that names the file and the key."""
        path = path.expanduser().absolute()
        top = _TomlTable(path, "", _parse_toml(path))
        top.check_keys(_TOP_KEYS)
        streams = tuple(_parse_stream(_TomlTable(path, f"streams.{name}", value)) for name, value in top.subtables("streams"))
        queries = tuple(_parse_query(_TomlTable(path, f"queries.{name}", value)) for name, value in top.subtables("queries"))
        if not streams or (require_queries and not queries):
            raise HeadraceError(
                f"session file '{path}' has no {'streams' if not streams else 'queries'}",
                hint="see `headrace run --help` for the format",
            )
        rows_per_batch, checkpoint = top.get("rows_per_batch"), top.get("checkpoint")
        if rows_per_batch is not None and rows_per_batch < 1:
            raise top.make_error("rows_per_batch", f"is {rows_per_batch}, but must be positive")
        return SessionFile(
            path,
            streams,
            queries,
            None if checkpoint is None else top.parse_location("checkpoint", checkpoint),
            rows_per_batch,
            _parse_spark(top),
            top.get("functions", True),
            {name: _parse_storage_entry(top, name, value) for name, value in top.get("storage", {}).items()},
            _parse_partition_setting(top),
            _parse_change_settings(top),
            _parse_sliding_joins(top),
            _parse_window_joins(top),
            _parse_late_materialization(top),
            _parse_join_slices(top),
        )

    def make_sinks(self, query: QueryEntry, out: str | None) -> tuple[Sink, ...]:
        """Return the sinks of a query; with `out`, an absolute path or a URL, file sinks are below it, and are the default."""
        base = str(self.path.parent) if out is None else out
        if not query.sinks:
            folder = quote(query.name, safe="")
            path = f"{base}/{f'%2E{folder[1:]}' if folder[0] == '.' else folder}"
            return (parse_sink(None if out is None else {"jsonl": path}),)
        return tuple(self._make_sink(query, spec, base) for spec in query.sinks)

    def _make_sink(self, query: QueryEntry, spec: str | Mapping[str, Any], base: str) -> Sink:
        key = f"key 'queries.{query.name}.sink' in '{self.path}'"
        kind, colon, directory = ("", "", "") if isinstance(spec, Mapping) else spec.partition(":")
        try:
            if isinstance(spec, Mapping):
                path = spec.get("path")
                place = {"path": parse_location(path, SinkError, "sink", base)} if isinstance(path, str) else {}
                return parse_sink({**spec, **place})
            if kind in {"parquet", "jsonl", "delta"} and directory:
                return parse_sink({kind: parse_location(directory, SinkError, "sink", base)})
        except SinkError as error:
            raise HeadraceError(f"{key}: {error.message}", detail=error.detail, hint=error.hint) from error
        if colon or kind not in {"memory", "console", "noop"}:
            raise HeadraceError(
                f"{key} is '{spec}', which is not a sink",
                detail=f"sinks: memory, console, noop, parquet:DIR, jsonl:DIR, delta:DIR, or a table: {', '.join(SINK_KINDS)}",
            )
        return parse_sink(kind)


@dataclass(frozen=True, slots=True)
class _TomlTable:
    """A table of the file, with the file and key for error messages."""

    file: Path
    key_path: str
    values: Mapping[str, Any]

    def check_keys(self, allowed: _KeyTypes, required: tuple[str, ...] = ()) -> None:
        for key, value in self.values.items():
            if key not in allowed:
                raise HeadraceError(f"unknown key '{self._full_key(key)}' in '{self.file}'", detail=f"keys: {', '.join(allowed)}")
            if type(value) not in allowed[key]:
                wanted = " or ".join(dict.fromkeys(_TYPE_NAMES[kind] for kind in allowed[key]))
                raise self.make_error(key, f"is {_TYPE_NAMES.get(type(value), type(value).__name__)}, but must be {wanted}")
        for key in required:
            if key not in self.values:
                raise HeadraceError(
                    f"key '{self._full_key(key)}' is missing in '{self.file}'", detail=f"keys: {', '.join(allowed)}"
                )

    def subtables(self, key: str) -> list[tuple[str, Mapping[str, Any]]]:
        tables = self.values.get(key, {})
        for name, value in tables.items():
            if not isinstance(value, dict) or not name:
                raise self.make_error(f"{key}.{name}", "is not a table", hint=f"write [{key}.NAME] and the keys below it")
        return list(tables.items())

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def make_error(self, key: str, reason: str, *, hint: str = "") -> HeadraceError:
        return HeadraceError(f"key '{self._full_key(key)}' in '{self.file}' {reason}", hint=hint)

    def parse_location(self, key: str, text: str, *, base: str | None = None) -> str:
        """Return the location that a key names; a relative path starts at the folder of the file, or at `base`."""
        try:
            return parse_location(text, what=key, base=str(self.file.parent) if base is None else base)
        except HeadraceError as error:
            raise self.make_error(key, f"is invalid: {error.message}", hint=error.hint) from error

    def _full_key(self, key: str) -> str:
        return f"{self.key_path}.{key}" if self.key_path else key


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadraceError(f"cannot read session file '{path}'", detail=error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HeadraceError(f"session file '{path}' is not TOML", detail=str(error)) from error


def _parse_spark(top: _TomlTable) -> SparkOptions:
    table = _TomlTable(top.file, "spark", top.get("spark", {}))
    table.check_keys(_SPARK_KEYS)
    if "master" in table.values and "master" in top.values:
        raise top.make_error("master", "is given twice, also in [spark]", hint="leave one of them out")
    try:
        settings = flatten_settings(table.get("config", {}))
    except TypeError as error:
        raise table.make_error("config", f"is invalid: {error}") from error
    return SparkOptions(table.get("master", top.get("master")), settings, table.get("exchange"))


def _parse_partition_setting(top: _TomlTable) -> PartitionSetting | None:
    setting = top.get("partitions")
    try:
        return None if setting is None else parse_partitions(setting)
    except HeadraceError as error:
        raise top.make_error("partitions", f"is {setting!r}", hint=error.hint) from error


def _parse_change_settings(top: _TomlTable) -> dict[str, Any]:
    given = {name: top.values[name] for name in _CHANGE_KEYS if name in top.values}
    try:
        ChangeSettings(*(given.get(name, default) for name, default in _CHANGE_KEYS.items()))
    except HeadraceError as error:
        raise HeadraceError(f"session file '{top.file}': {error.message}", hint=error.hint) from error
    return given


def _parse_join_slices(top: _TomlTable) -> JoinSliceOptions:
    mode, max_bytes = top.get("join_slices", "auto"), top.get("join_slices_bytes", DEFAULT_JOIN_SLICES.max_bytes)
    try:
        return JoinSliceOptions.parse(mode, max_bytes)
    except HeadraceError as error:
        key = error.message.removeprefix("invalid setting ").partition("=")[0]
        raise top.make_error(key, f"is {top.get(key)!r}", hint=error.hint) from error


def _parse_sliding_joins(top: _TomlTable) -> SlidingJoinOptions:
    table = _TomlTable(top.file, "sliding_joins", top.get("sliding_joins", {}))
    table.check_keys(_SLIDING_JOIN_KEYS)
    plan, target, budget = table.get("plan", "auto"), table.get("target", "probes"), table.get("budget")
    try:
        return SlidingJoinOptions.parse(plan, target, budget, is_shared=table.get("sharing", True))
    except HeadraceError as error:
        key = error.message.partition("sliding_")[2].partition("=")[0]
        raise table.make_error(key, f"is {table.get(key)!r}", hint=error.hint) from error


def _parse_window_joins(top: _TomlTable) -> dict[str, Any]:
    table: dict[str, Any] = top.get("window_joins", {})
    try:
        WindowJoinOptions.parse(table)
    except HeadraceError as error:
        raise HeadraceError(f"session file '{top.file}': {error.message}", hint=error.hint) from error
    return table


def _parse_late_materialization(top: _TomlTable) -> LateMaterialization:
    setting = top.get("late_materialization", "auto")
    try:
        return LateMaterialization.parse(setting)
    except HeadraceError as error:
        raise top.make_error("late_materialization", f"is {setting!r}", hint=error.hint) from error


def _parse_stream(table: _TomlTable) -> StreamEntry:
    kind = table.get("source", "files")
    if kind not in SOURCE_OPTIONS:
        raise HeadraceError(
            f"key '{table.key_path}.source' in '{table.file}' is '{kind}', which is not a source",
            detail=f"sources: {', '.join(SOURCE_OPTIONS)}",
        )
    table.check_keys({**_STREAM_KEYS, **SOURCE_OPTIONS[kind]}, ("time", *REQUIRED_OPTIONS[kind]))
    options = {key: value for key, value in table.values.items() if key in SOURCE_OPTIONS[kind]}
    if kind == "files":
        options["path"] = table.parse_location("path", options["path"], base=glob.escape(str(table.file.parent)))
    if kind in {"files", "kafka"}:
        kind_of_letters, colon, folder = options.get("dead_letter", "").partition(":")
        if colon and kind_of_letters != "kafka":
            options["dead_letter"] = f"{kind_of_letters}:{table.parse_location('dead_letter', folder)}"
    name = table.key_path.removeprefix("streams.")
    watermark, max_ahead, idle = table.get("watermark", "0 seconds"), table.get("max_ahead"), table.get("idle", "10 seconds")
    for key, duration in (("watermark", watermark), ("max_ahead", max_ahead), ("idle", idle)):
        try:
            parse_duration("0 seconds" if duration is None else duration)
        except HeadraceError as error:
            raise table.make_error(key, f"is invalid: {error.message}", hint=error.hint) from error
    return StreamEntry(name, kind, options, table.get("time"), watermark, max_ahead, table.get("watermark_by"), idle)


def _parse_query(table: _TomlTable) -> QueryEntry:
    table.check_keys(_QUERY_KEYS, ("sql",))
    budget = table.get("budget")
    if budget is not None:
        try:
            QueryBudget.parse(budget)
        except HeadraceError as error:
            raise table.make_error("budget", f"is invalid: {error.message}", hint=error.hint or error.detail) from error
    return QueryEntry(table.key_path.removeprefix("queries."), table.get("sql").strip(), _parse_sinks(table), budget)


def _parse_sinks(table: _TomlTable) -> tuple[str | Mapping[str, Any], ...]:
    sink, sinks = table.get("sink"), table.get("sinks")
    if sinks is None:
        return () if sink is None else (sink,)
    if sink is not None or not sinks or not all(isinstance(spec, str | dict) for spec in sinks):
        raise HeadraceError(
            f"key '{table.key_path}.sinks' in '{table.file}' is not a list of sinks, or there is a sink besides it",
            hint='write sinks = ["memory", {kind = "kafka", brokers = "127.0.0.1:9092", topic = "results"}]',
        )
    return tuple(sinks)


def _parse_storage_entry(top: _TomlTable, name: str, value: object) -> str | Mapping[str, str]:
    """Return an option, or the options of a table whose name is a URL."""
    if not isinstance(value, Mapping):
        return _parse_storage_option(top, name, value)
    if not is_url(name):
        raise top.make_error(f"storage.{name}", "must be a text, a number or a boolean; a table is named by a URL")
    return {inner: _parse_storage_option(top, f"{name}.{inner}", option) for inner, option in value.items()}


def _parse_storage_option(top: _TomlTable, name: str, value: object) -> str:
    if not isinstance(value, str | bool | int):
        raise top.make_error(f"storage.{name}", "must be a text, a number or a boolean")
    return str(value).lower() if isinstance(value, bool) else str(value)
