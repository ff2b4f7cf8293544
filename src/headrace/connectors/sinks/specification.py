"""Sinks from what users write: texts, tables of options, functions; and from JSON, as checkpoints store them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.connectors.sinks.base import CallbackSink, ConsoleSink, MemorySink, NoopSink, Sink
from headrace.connectors.sinks.delta import DeltaSink
from headrace.connectors.sinks.files import JsonLinesSink, ParquetSink
from headrace.connectors.sinks.iceberg import IcebergSink
from headrace.connectors.sinks.kafka import KafkaSink
from headrace.connectors.sinks.postgres import PostgresSink
from headrace.connectors.sinks.webhook import WebhookSink
from headrace.errors import SinkError

SinkSpec: TypeAlias = str | Mapping[str, Any] | Sink | Callable[[pa.Table], object] | None

_PLAIN_SINKS: Mapping[str, type[Sink]] = {"memory": MemorySink, "noop": NoopSink, "console": ConsoleSink}
_PATH_SINKS: Mapping[str, Callable[[str], Sink]] = {"parquet": ParquetSink, "jsonl": JsonLinesSink, "delta": DeltaSink}
_SINK_CLASSES: tuple[type[Sink], ...] = (
    *_PLAIN_SINKS.values(), ParquetSink, JsonLinesSink, KafkaSink, DeltaSink, IcebergSink, PostgresSink, WebhookSink,
)  # fmt: skip
SINK_KINDS: Mapping[str, type[Sink]] = {sink.kind: sink for sink in _SINK_CLASSES}


def sink_from_json(value: Mapping[str, Any]) -> Sink:
    """Return the sink with these options, of which `kind` names its class; raises SinkError for unknown or missing ones.

    Of a Kafka sink, options with a dot in their name are those of librdkafka.
    """
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in SINK_KINDS:
        raise _unknown_sink_error(value if kind is None else kind)
    options = {str(name): item for name, item in value.items() if name != "kind"}
    dotted = {name: item for name, item in options.items() if "." in name}
    if dotted and SINK_KINDS[kind] in {KafkaSink, IcebergSink, DeltaSink}:
        group = {KafkaSink: "options", IcebergSink: "catalog", DeltaSink: "storage_options"}[SINK_KINDS[kind]]
        options = {name: item for name, item in options.items() if name not in dotted}
        prefix = f"{group}."
        options[group] = {**options.get(group, {}), **{n.removeprefix(prefix): item for n, item in dotted.items()}}
    _check_options(kind, options)
    try:
        return SINK_KINDS[kind](**options)
    except TypeError as error:
        raise SinkError(f"an option of the {kind} sink has a wrong type", detail=str(error)) from error


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    fields = {field.name: field for field in dataclasses.fields(SINK_KINDS[kind])}
    unknown = next((name for name in options if name not in fields), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, fields, 1)
        raise SinkError(
            f"unknown option '{unknown}' of the {kind} sink",
            detail=f"options: {', '.join(fields) or 'none'}",
            hint=f"did you mean '{near[0]}'?" if near else "",
        )
    is_required = {n: f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING for n, f in fields.items()}
    missing = next((name for name, required in is_required.items() if required and name not in options), None)
    if missing is not None:
        raise SinkError(f"option '{missing}' of the {kind} sink is missing", detail=f"options: {', '.join(fields)}")


def parse_sink(spec: SinkSpec) -> Sink:
    """Return the sink for a user's specification.

    A specification is None or 'memory', 'noop' or 'console'; {'parquet': DIR}, 'parquet:DIR' or a name that ends in '.parquet';
    the same with jsonl and delta; a table of options such as {'kind': 'kafka', 'brokers': …, 'topic': …}; a function of a table;
    or a sink. Raises SinkError for anything else.
    """
    if spec is None:
        return MemorySink()
    if isinstance(spec, Sink):
        return spec
    if isinstance(spec, str):
        return _parse_text(spec)
    if isinstance(spec, Mapping):
        return _parse_mapping(spec)
    if callable(spec):
        return CallbackSink(spec)
    raise _unknown_sink_error(spec)


def _parse_text(spec: str) -> Sink:
    if spec in _PLAIN_SINKS:
        return _PLAIN_SINKS[spec]()
    for kind, make in _PATH_SINKS.items():
        path = spec.removeprefix(f"{kind}:")
        if path and (path != spec or spec.endswith(f".{kind}")):
            return make(path)
    raise _unknown_sink_error(spec)


def _parse_mapping(spec: Mapping[str, Any]) -> Sink:
    if "kind" in spec:
        return sink_from_json(spec)
    if len(spec) == 1:
        kind, path = next(iter(spec.items()))
        if kind in _PATH_SINKS and isinstance(path, str | Path) and str(path):
            return _PATH_SINKS[kind](str(path))
    raise _unknown_sink_error(spec)


def _unknown_sink_error(spec: object) -> SinkError:
    published = ", ".join(kind for kind in SINK_KINDS if kind not in _PLAIN_SINKS and kind not in _PATH_SINKS)
    return SinkError(
        f"unknown sink with the options {', '.join(map(str, spec)) or 'none'}"
        if isinstance(spec, Mapping)
        else f"unknown sink {spec!r}",
        detail="known: memory, noop, console, parquet:DIR, jsonl:DIR, delta:DIR, {'parquet': DIR}, {'jsonl': DIR}, a function, "
        f"and {{'kind': KIND, …}} with the kinds {published}",
    )
