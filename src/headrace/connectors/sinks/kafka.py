"""The Kafka sink: one transaction for each batch, with the rows and the mark of the writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.connectors.kafka.client_options import is_secret
from headrace.connectors.secrets import check_reference
from headrace.connectors.sinks.destination import PublishedSink, check_has_columns, parse_names, to_text_options
from headrace.errors import SinkError

_OWN_OPTIONS = frozenset({"bootstrap.servers", "transactional.id", "enable.idempotence", "group.id", "isolation.level"})


@dataclass(frozen=True, slots=True)
class KafkaSink(PublishedSink):
    """Publishes rows to the topic `topic`, exactly once for readers with `isolation.level=read_committed`.

    - `brokers`: addresses such as "127.0.0.1:9092", with commas between them.
    - `key`: columns of the message key; of one column its text, of several a JSON object. Rows with equal keys go to one
      partition.
    - `headers`: columns that become headers of the messages; they are in the value, too.
    - `format`, `format_options`: the form of the value.
    - `partitioner`: that of librdkafka; by default the one of Kafka's Java producers.
    - `options`: all others of librdkafka, such as {"compression.type": "zstd", "sasl.password": "env:KAFKA_PASSWORD"}. Secrets
      are references: `env:NAME` or `file:PATH`.
    """

    kind: ClassVar[str] = "kafka"
    extra: ClassVar[str] = "kafka"
    destination_class: ClassVar[tuple[str, str]] = ("headrace.connectors.sinks.kafka_destination", "KafkaDestination")
    brokers: str
    topic: str
    key: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    format: str = "json"
    format_options: Mapping[str, str] = field(default_factory=dict)
    partitioner: str = "murmur2_random"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options; raises SinkError."""
        for name in ("key", "headers"):
            object.__setattr__(self, name, parse_names(getattr(self, name), name))
        for name in ("format_options", "options"):
            object.__setattr__(self, name, to_text_options(getattr(self, name), name))
        for name in ("brokers", "topic"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise SinkError(f"option '{name}' of the kafka sink is missing")
        for name, value in self.options.items():
            if name in _OWN_OPTIONS:
                raise SinkError(f"option '{name}' of the kafka sink is chosen by headrace")
            if is_secret(name):
                check_reference(name, value, SinkError)

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Sink`."""
        check_has_columns(self, "key", self.key, schema)
        check_has_columns(self, "headers", self.headers, schema)
        PublishedSink.check_columns(self, schema)

    def describe(self) -> str:
        """See `Sink`."""
        return f"kafka:{self.topic}"

    def list_hosts(self) -> list[str]:
        """See `PublishedSink`."""
        registry = urlsplit(self.format_options.get("registry", "")).netloc
        return [*(broker.strip() for broker in self.brokers.split(",")), *([registry] if registry else [])]
