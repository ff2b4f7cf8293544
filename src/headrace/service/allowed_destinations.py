"""The servers that requests may name, from `serve --allow-host`; without one, requests name no sinks but folders.

A sink or a stream makes the service connect to other servers and write files, with the rights and the secrets of its operator. So
a request may send results and secrets only to hosts that are allowed: sinks, schema registries, and brokers that get a secret.
Folders are below an allowed root; the options that it may set are those that neither read other files nor load code; and its
secrets are environment variables whose names begin with HEADRACE_SECRET_. What a session file names is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace.connectors import FileSink, PublishedSink, Sink, parse_sink
from headrace.connectors.secrets import is_reference
from headrace.errors import HeadraceError
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.problems import ForbiddenPathError
from headrace.statements import SinkOptions
from headrace.storage.locations import is_url

_SECRET_PREFIX = "env:HEADRACE_SECRET_"  # noqa: S105  the prefix of a reference
_SAFE_OPTIONS = frozenset({
    "acks", "batch.num.messages", "batch.size", "client.id", "compression.codec", "compression.level", "compression.type",
    "linger.ms", "message.max.bytes", "sasl.mechanism", "sasl.mechanisms", "sasl.password", "sasl.username", "security.protocol",
    "transaction.timeout.ms",
})  # fmt: skip
_SAFE_SOURCE_OPTIONS = _SAFE_OPTIONS | {
    "broker.address.family", "check.crcs", "client.rack", "fetch.error.backoff.ms",
    "fetch.max.bytes", "fetch.message.max.bytes", "fetch.min.bytes", "fetch.wait.max.ms", "isolation.level",
    "max.partition.fetch.bytes", "queued.max.messages.kbytes", "queued.min.messages", "receive.message.max.bytes",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "socket.connection.setup.timeout.ms", "socket.keepalive.enable",
    "socket.receive.buffer.bytes", "socket.timeout.ms", "ssl.endpoint.identification.algorithm",
}  # fmt: skip
_SAFE_CATALOG_OPTIONS = frozenset({"name", "type", "uri", "warehouse", "token", "credential"})
_SAFE_URL_PARAMETERS = frozenset({"application_name", "sslmode", "connect_timeout"})


class AllowedDestinations:
    """Hosts and URLs that requests may send results and secrets to, and the roots of folders."""

    def __init__(self, patterns: Sequence[str], roots: AllowedRoots) -> None:
        """Take the patterns, such as 127.0.0.1:9092, kafka-*.example.com, or s3://bucket/results, and the roots of folders."""
        self._patterns, self.roots = [pattern.strip().lower() for pattern in patterns], roots

    def parse(self, spec: SinkOptions) -> Sink:
        """Return the sink of a request; raises SinkError if it is invalid, ForbiddenPathError if it is not allowed."""
        sink = parse_sink(spec)
        _check_references(_drop_paths(sink))
        self._check_options(sink)
        if isinstance(sink, FileSink | PublishedSink):
            for path in [sink.path] if isinstance(sink, FileSink) else sink.list_paths():
                self._check_path(path)
        elif sink.kind not in {"memory", "noop"}:
            raise _make_error(f"sink '{sink.kind}'", "read the results, or name a destination")
        self._check_hosts(sink.list_hosts() if isinstance(sink, PublishedSink) else ())
        return sink

    def check_kafka_source(self, brokers: str, options: Mapping[str, object], format_options: Mapping[str, object]) -> None:
        """Check what a request says of a Kafka source; raises ForbiddenPathError for what it may not name.

        Otherwise a request could send a file, or a secret of the service, as the password to a server of its choice.
        """
        has_secrets = _check_references(options)
        for name, value in options.items():
            if name.endswith(".location"):
                self.roots.check(str(value))
            elif name not in _SAFE_SOURCE_OPTIONS:
                allowed = ", ".join(sorted(_SAFE_SOURCE_OPTIONS))
                raise _make_error(f"option '{name[:200]}' of a Kafka client", f"allowed: {allowed}")
        self._check_hosts([brokers] if has_secrets else ())
        registry = str(format_options.get("registry", ""))
        self._check_hosts([urlsplit(registry).netloc] if registry else ())

    def check_dead_letter(self, target: str, brokers: str) -> None:
        """Check where a request keeps messages that are no rows: a topic of allowed brokers, or a folder as those of sinks."""
        kind, _, folder = target.partition(":")
        if kind == "kafka":
            self._check_hosts([brokers])
        else:
            self._check_path(folder)

    def _check_hosts(self, hosts: Sequence[str]) -> None:
        for host in _split_hosts(hosts):
            if not self._matches_host(host):
                raise _make_error(f"destination '{host[:200]}'", self._make_hint(host))

    def _check_path(self, path: str) -> None:
        if not is_url(path):
            self.roots.check(path)
        elif not any("://" in pattern and f"{path}/".lower().startswith(f"{pattern.rstrip('/')}/") for pattern in self._patterns):
            raise _make_error(f"destination '{path[:200]}'", self._make_hint(path))

    def _matches_host(self, host: str) -> bool:
        name = host.lower()
        return any(fnmatchcase(name, pattern) or fnmatchcase(_strip_port(name), pattern) for pattern in self._patterns)

    def _make_hint(self, destination: str) -> str:
        allowed = ", ".join(self._patterns)
        return f"allowed: {allowed}" if allowed else f"start the service with --allow-host {destination[:200]}"

    def _check_options(self, sink: Sink) -> None:
        """Raise ForbiddenPathError for an option that reads a file, loads code, or connects to another host."""
        options, safe = getattr(sink, "options", {}), _SAFE_OPTIONS
        if sink.kind == "iceberg":
            options, safe = getattr(sink, "catalog", {}), _SAFE_CATALOG_OPTIONS
        elif sink.kind == "postgres":
            options, safe = parse_qs(urlsplit(getattr(sink, "url", "")).query), _SAFE_URL_PARAMETERS
        elif sink.kind == "delta":
            options, safe = getattr(sink, "storage_options", {}), frozenset[str]()
        unsafe = next((name for name in options if name not in safe), None)
        if unsafe is not None:
            raise _make_error(f"option '{unsafe[:200]}' of a {sink.kind} sink", f"allowed: {', '.join(sorted(safe)) or 'none'}")


def _split_hosts(hosts: Sequence[str]) -> Iterator[str]:
    for some in hosts:
        yield from (host.strip().rpartition("@")[2].rpartition("://")[2] for host in some.split(","))


def _strip_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _drop_paths(sink: Sink) -> Mapping[str, Any]:
    """Return the sink as JSON without its paths, which may be URLs of files, and are never resolved as references."""
    value = sink.to_json()
    value.pop("path", None)
    if sink.kind == "iceberg":
        value["catalog"] = {name: item for name, item in value["catalog"].items() if name != "warehouse"}
    return value


def _check_references(value: Any) -> bool:
    """Return whether options, as JSON, refer to secrets; raises ForbiddenPathError for those that requests may not read."""
    if isinstance(value, Mapping):
        found = [_check_references(item) for item in value.values()]  # all of them, whatever the first ones are
        return any(found)
    if not is_reference(value):
        return False
    if not value.startswith(_SECRET_PREFIX):
        raise _make_error(f"reference '{value[:200]}'", f"name a variable as {_SECRET_PREFIX}NAME")
    return True


def _make_error(what: str, hint: str) -> HeadraceError:
    return ForbiddenPathError(f"{what} is not allowed in a request", hint=f"{hint}; or name it in the session file")
