"""The servers that requests may name, from `serve --allow-host`; without one, requests name no sinks but folders.

A sink or a stream makes the service connect to other servers and write files, with the rights and the secrets of its operator. So
a request may send results and secrets only to hosts that are allowed: sinks, schema registries, and brokers that get a secret.
Folders are below an allowed root; the options that it may set are those that neither read other files nor load code; and its
secrets are environment variables whose names begin with HEADRACE_SECRET_. What a session file names is not checked.

What is not known to be safe is refused. An address must be so plain that every library finds the same host in it; a path and a
URL have no `..`, no escapes and no query.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace.connectors import (
    DeltaSink,
    FileSink,
    IcebergSink,
    KafkaSink,
    PostgresSink,
    PublishedSink,
    Sink,
    WebhookSink,
    parse_sink,
)
from headrace.connectors.secrets import is_reference
from headrace.errors import HeadraceError
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.problems import ForbiddenPathError
from headrace.statements import SinkOptions

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
_SAFE_CATALOG_OPTIONS = frozenset({"type", "uri", "warehouse", "token", "credential"})
_SQLITE_SCHEMES = frozenset({"sqlite", "sqlite+pysqlite"})
_CATALOG_SCHEMES = {"rest": {"http", "https"}, "sql": {"postgresql", "postgresql+psycopg", "postgresql+psycopg2"}}
_SAFE_URL_PARAMETERS = frozenset({"application_name", "sslmode", "connect_timeout"})
_SAFE_HEADERS = re.compile(r"(?i)authorization|accept|user-agent|x-(?!forwarded|real-ip|headrace|original|http-method)[a-z0-9-]+")
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
_ADDRESS = re.compile(
    rf"[a-z][a-z0-9+]*://(?:[\w.-]+@)?{_HOST.pattern}(?:,{_HOST.pattern})*(?:/[\w./-]*)?", re.ASCII | re.IGNORECASE
)
_PLAIN_PARAMETERS = re.compile(r"[\w.=&-]*", re.ASCII)
_STORE_URL = re.compile(r"[a-z0-9]+://[\w.@-]+(?:/[\w.=@ -]+)*/?", re.ASCII)


class AllowedDestinations:
    """Hosts and URLs that requests may send results and secrets to, and the roots of folders."""

    def __init__(self, patterns: Sequence[str], roots: AllowedRoots) -> None:
        """Take the patterns, such as 127.0.0.1:9092, kafka-*.example.com, or s3://bucket/results, and the roots of folders."""
        self._patterns, self.roots = [pattern.strip() for pattern in patterns], roots

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
        self._check_registry(format_options)

    def _check_registry(self, format_options: Mapping[str, object]) -> None:
        registry = str(format_options.get("registry", ""))
        if registry:
            _check_address(registry, {"http", "https"})
            self._check_hosts([urlsplit(registry).netloc])

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
        has_parents = ".." in path.split("/")
        if path.startswith("/") and not has_parents:
            self.roots.check(path)
            if not self.roots.contains(path):  # the check of a pattern does not see a link with such a name
                raise _make_error(f"destination '{path[:200]}'", "name a path below an allowed root")
        elif has_parents or not _STORE_URL.fullmatch(path) or not self._matches_url(path):
            raise _make_error(f"destination '{path[:200]}'", self._make_hint(path))

    def _matches_url(self, url: str) -> bool:
        return any("://" in pattern and f"{url}/".startswith(f"{pattern.rstrip('/')}/") for pattern in self._patterns)

    def _matches_host(self, host: str) -> bool:
        if not _HOST.fullmatch(host):
            return False
        name, patterns = host.lower(), [pattern.lower() for pattern in self._patterns]
        return any(fnmatchcase(name, pattern) or fnmatchcase(_strip_port(name), pattern) for pattern in patterns)

    def _make_hint(self, destination: str) -> str:
        allowed = ", ".join(self._patterns)
        return f"allowed: {allowed}" if allowed else f"start the service with --allow-host {destination[:200]}"

    def _check_options(self, sink: Sink) -> None:
        """Raise ForbiddenPathError for an option that reads a file, loads code, or connects to another host."""
        match sink:
            case KafkaSink():
                _check_names(sink, sink.options, _SAFE_OPTIONS)
                self._check_registry(sink.format_options)
            case IcebergSink():
                _check_names(sink, sink.catalog, _SAFE_CATALOG_OPTIONS)
                _check_catalog(sink.catalog)
            case PostgresSink():
                _check_names(sink, parse_qs(urlsplit(sink.url).query, keep_blank_values=True), _SAFE_URL_PARAMETERS)
                address, _, parameters = sink.url.partition("?")
                is_plain = _PLAIN_PARAMETERS.fullmatch(parameters)  # libpq takes what is before an @ as the user
                _check_address(address if is_plain else sink.url, {"postgres", "postgresql"})
            case DeltaSink():
                _check_names(sink, sink.storage_options, frozenset())
            case WebhookSink():
                unsafe = next((name for name in sink.headers if not _SAFE_HEADERS.fullmatch(name)), None)
                if unsafe is not None:
                    raise _make_error(f"header '{unsafe[:200]}' of a webhook", "allowed: Authorization, Accept, User-Agent, X-…")


def _check_names(sink: Sink, options: Mapping[str, object], safe: frozenset[str]) -> None:
    unsafe = next((name for name in options if name not in safe), None)
    if unsafe is not None:
        raise _make_error(f"option '{unsafe[:200]}' of a {sink.kind} sink", f"allowed: {', '.join(sorted(safe)) or 'none'}")


def _check_catalog(catalog: Mapping[str, str]) -> None:
    """Check the server or the file of an Iceberg catalog, and leave out those that the environment of the service describes."""
    kind = catalog.get("type", "none")
    if kind not in _CATALOG_SCHEMES:
        raise _make_error(f"catalog '{kind[:200]}' of an iceberg sink", f"give a type: {', '.join(_CATALOG_SCHEMES)}")
    scheme, _, file = catalog.get("uri", "").partition(":///")
    if not (kind == "sql" and scheme in _SQLITE_SCHEMES and re.fullmatch(r"[^?#%]+", file)):
        _check_address(catalog.get("uri", ""), _CATALOG_SCHEMES[kind])


def _check_address(url: str, schemes: Collection[str]) -> None:
    """Raise ForbiddenPathError unless every library finds the same host in a URL, without a search elsewhere."""
    if not _ADDRESS.fullmatch(url) or url.partition("://")[0].lower() not in schemes:
        hint = f"write {' or '.join(f'{scheme}://' for scheme in sorted(schemes))}, a host, and a plain path"
        raise _make_error(f"address '{url[:200]}'", hint)


def _split_hosts(hosts: Sequence[str]) -> Iterator[str]:
    for some in hosts:
        yield from (re.sub(r"^\w+://", "", host.strip()) for host in some.split(","))


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
