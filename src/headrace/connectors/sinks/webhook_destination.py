"""The connection of a webhook sink: requests that are signed, and repeated by the caller until the server takes them."""

from __future__ import annotations

import hashlib
import hmac
import json
import time

import httpx
import pyarrow as pa

from headrace.connectors.row_text import encode_json_lines
from headrace.connectors.secrets import resolve_reference
from headrace.connectors.sinks.webhook import WebhookSink
from headrace.errors import DestinationUnavailableError, SinkError

_REFUSALS = frozenset({400, 413, 422})  # what a repetition does not change


class WebhookDestination:
    """See `Destination`; a server keeps no mark."""

    def __init__(self, sink: WebhookSink, writer: str) -> None:
        """Take the sink; nothing is sent yet."""
        self._sink, self._writer = sink, writer
        self._client = httpx.Client(timeout=sink.timeout, follow_redirects=False)
        self._secret = b""

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Destination`; every type has a form."""

    def read_mark(self) -> int | None:
        """See `Destination`."""
        self._secret = resolve_reference("secret", self._sink.secret, DestinationUnavailableError).encode()
        for name, value in self._sink.headers.items():
            self._client.headers[name] = resolve_reference(name, value, DestinationUnavailableError)
        return None

    def publish(self, batch: int, rows: pa.Table) -> None:
        """See `Destination`; some requests of a batch may be taken, and others not."""
        for part, start in enumerate(range(0, rows.num_rows, self._sink.max_rows)):
            lines = encode_json_lines(rows.slice(start, self._sink.max_rows))
            head = json.dumps({"writer": self._writer, "batch": batch, "part": part})[:-1].encode()
            self._post(f"{self._writer}-{batch}-{part}", head + b', "rows": [' + b", ".join(lines) + b"]}")

    def _post(self, key: str, body: bytes) -> None:
        moment = str(int(time.time()))
        headers = {"Content-Type": "application/json", "Idempotency-Key": key, "X-Headrace-Timestamp": moment}
        if self._secret:
            digest = hmac.new(self._secret, f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
            headers["X-Headrace-Signature"] = f"sha256={digest}"
        answer = self._client.post(self._sink.url, content=body, headers=headers)
        if answer.status_code in _REFUSALS:
            raise SinkError(f"the webhook refuses the rows with status {answer.status_code}", detail=answer.text[:200])
        if not answer.is_success:
            raise ConnectionError(f"the webhook answers with status {answer.status_code}")

    def close(self) -> None:
        """See `Destination`."""
        self._client.close()
