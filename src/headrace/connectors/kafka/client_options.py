"""Settings of librdkafka clients, as users give them: a secret is a reference (`connectors.secrets`), never the value."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connectors.secrets import check_reference, resolve_reference
from headrace.connectors.source import Option
from headrace.errors import SourceError

ClientOptions = Mapping[str, Option]

_SECRET_PARTS = ("password", "passphrase", "secret", "key.pem", "oauthbearer.config", "jaas")
_MANAGED = {
    "bootstrap.servers": "write brokers='host:port'",
    "group.id": "write group='…', which only reports progress: headrace keeps the offsets itself",
    "enable.auto.commit": "headrace keeps the offsets itself",
    "enable.partition.eof": "headrace depends on it",
    "auto.offset.reset": "write start='…'; messages that retention has deleted are what on_lost='…' is for",
    "statistics.interval.ms": "headrace depends on it",
    "plugin.library.paths": "it would load code into every worker",
}


def is_secret(name: str) -> bool:
    """Return whether a setting of librdkafka is a secret, as its name says."""
    return any(part in name for part in _SECRET_PARTS)


def check_options(options: ClientOptions) -> dict[str, Option]:
    """Return the options; raises SourceError for a secret that is not a reference, and for what headrace sets itself."""
    for name, value in options.items():
        if name in _MANAGED:
            raise SourceError(f"option '{name}' of a Kafka client cannot be set", hint=_MANAGED[name])
        if not isinstance(value, str | int | float | bool):
            raise SourceError(f"option '{name}' of a Kafka client is not a text, a number or a boolean")
        if is_secret(name):
            check_reference(name, value, SourceError)
    return dict(options)


def resolve_options(options: ClientOptions) -> dict[str, str]:
    """Return the options as librdkafka takes them; raises SourceError if a reference leads nowhere."""
    return {name: _resolve(name, value) for name, value in options.items()}


def _resolve(name: str, value: Option) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return resolve_reference(name, str(value), SourceError)
