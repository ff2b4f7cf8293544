"""The webhook sink: rows as signed HTTP requests, at least once, for alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from headrace.connectors.secrets import check_reference
from headrace.connectors.sinks.destination import PublishedSink, to_text_options
from headrace.errors import SinkError

_MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class WebhookSink(PublishedSink):
    """Posts rows as JSON to `url`, at least once: a repeated request has the same Idempotency-Key.

    - `secret`: a reference, `env:NAME` or `file:PATH`; with it, X-Headrace-Signature is `sha256=` and the HMAC of the text
      `<X-Headrace-Timestamp>.<body>`.
    - `headers`: further headers; a value may be a reference, and that of Authorization must be one.
    - `max_rows`: of one request; a batch with more takes several.
    - `timeout`: seconds until an answer.
    """

    kind: ClassVar[str] = "webhook"
    extra: ClassVar[str] = ""
    destination_class: ClassVar[tuple[str, str]] = ("headrace.connectors.sinks.webhook_destination", "WebhookDestination")
    secret_options: ClassVar[frozenset[str]] = frozenset({"secret"})
    is_exactly_once: ClassVar[bool] = False
    url: str
    secret: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    max_rows: int = 500
    timeout: float = 10.0

    def __post_init__(self) -> None:
        """Check the options; raises SinkError."""
        object.__setattr__(self, "headers", to_text_options(self.headers, "headers"))
        PublishedSink.__post_init__(self)
        url = urlsplit(self.url)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise SinkError("option 'url' of the webhook sink is not an HTTP address", hint="https://host/path")
        if url.password or url.username:
            raise SinkError(
                "option 'url' of the webhook sink has a password", hint="write headers = {Authorization = 'env:NAME'}"
            )
        for name, value in self.headers.items():
            if name.lower() in {"authorization", "proxy-authorization", "cookie", "x-api-key"}:
                check_reference(name, value, SinkError)
        try:
            object.__setattr__(self, "max_rows", int(self.max_rows))
            object.__setattr__(self, "timeout", float(self.timeout))
        except (TypeError, ValueError) as error:
            raise SinkError("options 'max_rows' and 'timeout' of the webhook sink are numbers") from error
        if not (1 <= self.max_rows <= _MAX_ROWS and self.timeout > 0):
            raise SinkError(f"option 'max_rows' of the webhook sink is not in 1 … {_MAX_ROWS:,}, or 'timeout' is not positive")

    def describe(self) -> str:
        """See `Sink`; a path may be a secret."""
        return f"webhook:{urlsplit(self.url).netloc}"

    def list_hosts(self) -> list[str]:
        """See `PublishedSink`."""
        return [urlsplit(self.url).netloc]
