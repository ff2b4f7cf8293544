"""A client of schema registries with Confluent's interface: schemas by id, kept for the life of the process.

A message that was written with a registry begins with a byte of zero and the id of its schema in four bytes, the highest first.
User and password are in the environment, HEADRACE_REGISTRY_USER and HEADRACE_REGISTRY_PASSWORD: options travel in plans and logs.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.connectors.message_formats.rejects import Rejects
from headrace.connectors.messages import Messages
from headrace.errors import DestinationUnavailableError, SchemaError, SinkError, SourceError

HEADER_BYTES = 5
_TIMEOUT_SECONDS = 10.0
_MAX_RESPONSE = 16 << 20
_MAX_SCHEMAS = 10_000  # that are kept
_UNKNOWN_SECONDS = 10.0  # how long an unknown id is not asked for again
_MAX_UNKNOWN = 100  # ids that are asked for in vain in one of these intervals; the schemas of more are taken as unknown
_REFUSALS = frozenset({409, 422})  # of a schema: no repetition changes that
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its type, "AVRO", "PROTOBUF" or "JSON", and the schemas that it imports, by name."""

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaRegistry:
    """The schemas of one registry. Threads may share it."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a client; raises SchemaError for anything but an HTTP address. Nothing is sent."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SchemaError(f"invalid registry '{url}'", hint="write http://host:port or https://host")
        if parts.username or parts.password:
            raise SchemaError(
                "the address of a registry has a password", hint="set HEADRACE_REGISTRY_USER and …_PASSWORD instead"
            )
        self._url, self._clock, self._lock = url.rstrip("/"), clock, threading.Lock()
        self._schemas: dict[int, RegisteredSchema] = {}
        self._ids: dict[tuple[str, RegisteredSchema], int] = {}
        self._unknown: dict[int, float] = {}

    def find_schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id, or None if the registry does not know it; raises SourceError if it does not answer."""
        with self._lock:
            if schema_id in self._schemas:
                return self._schemas[schema_id]
            now = self._clock()
            self._unknown = {key: until for key, until in self._unknown.items() if until > now}
            if schema_id in self._unknown or len(self._unknown) >= _MAX_UNKNOWN:
                return None
            answer = self._request(f"/schemas/ids/{schema_id}", None, SourceError)
            if answer is None:
                self._unknown[schema_id] = now + _UNKNOWN_SECONDS
                return None
            while len(self._schemas) >= _MAX_SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[schema_id] = self._read_schema(answer)
            return self._schemas[schema_id]

    def _read_schema(self, answer: dict[str, Any]) -> RegisteredSchema:
        references = [
            (str(entry["name"]), self._find_reference(str(entry["subject"]), int(entry["version"])))
            for entry in answer.get("references", ())
        ]
        return RegisteredSchema(str(answer.get("schemaType", "AVRO")), str(answer["schema"]), tuple(references))

    def _find_reference(self, subject: str, version: int) -> str:
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
        answer = self._request(path, None, SourceError)
        if answer is None:
            raise SourceError(f"registry '{self._url}' lacks version {version} of subject '{subject}', which a schema imports")
        return str(answer["schema"])

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Return the id of a schema below a subject, where it is registered if it is new; raises SinkError if it is refused.

        Raises DestinationUnavailableError if the registry does not answer, or not now.
        """
        with self._lock:
            known = self._ids.get((subject, schema))
            if known is None:
                body = {"schema": schema.text} | ({} if schema.type == "AVRO" else {"schemaType": schema.type})
                path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
                answer = self._request(path, body, DestinationUnavailableError)
                if answer is None or not isinstance(answer.get("id"), int):
                    raise DestinationUnavailableError(f"registry '{self._url}' does not know how to register schemas")
                known = self._ids[subject, schema] = answer["id"]
            return known

    def _request(self, path: str, body: Any, error: type[SourceError | DestinationUnavailableError]) -> dict[str, Any] | None:
        """Return the answer to a request, or None for 404; raises SinkError if a schema is refused, else `error`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data)  # noqa: S310 - the constructor checks the scheme
        request.add_header("Accept", f"{_MEDIA_TYPE}, application/json")
        if data is not None:
            request.add_header("Content-Type", _MEDIA_TYPE)
        user = os.environ.get("HEADRACE_REGISTRY_USER")
        if user:
            password = os.environ.get("HEADRACE_REGISTRY_PASSWORD", "")
            secret = f"{user}:{password}"
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(secret.encode()).decode()}")
        try:
            with _opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                answer = json.loads(response.read(_MAX_RESPONSE))
        except urllib.error.HTTPError as problem:
            with problem:
                detail = problem.read(1000).decode("utf-8", "replace")
            if problem.code == 404:
                return None
            hint = "set HEADRACE_REGISTRY_USER and HEADRACE_REGISTRY_PASSWORD" if problem.code in {401, 403} else ""
            kind = SinkError if body is not None and problem.code in _REFUSALS else error
            raise kind(f"registry '{self._url}' refuses '{path}' with {problem.code}", detail=detail, hint=hint) from None
        except (OSError, ValueError, http.client.HTTPException) as problem:
            raise error(
                f"registry '{self._url}' does not answer", detail=str(problem), hint="start it, or correct its address"
            ) from None
        if not isinstance(answer, dict):
            raise error(f"registry '{self._url}' answers '{path}' with no object")
        return answer


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: they could lead to a host that the operator does not allow."""

    def redirect_request(self, *_: object) -> None:
        """Return no request, so that the answer is an error."""


_opener = urllib.request.build_opener(_RefuseRedirects)
_registries: dict[str, SchemaRegistry] = {}
_registries_lock = threading.Lock()


def open_registry(url: str) -> SchemaRegistry:
    """Return the client of a registry, one for each process."""
    with _registries_lock:
        if url not in _registries:
            _registries[url] = SchemaRegistry(url)
        return _registries[url]


def split_by_schema(messages: Messages, data: npt.NDArray[np.uint8], rejects: Rejects) -> dict[int, npt.NDArray[np.int64]]:
    """Return the rows of each schema id; messages without the header are rejected."""
    starts, ends = messages.offsets[:-1], messages.offsets[1:]
    is_framed = (ends - starts >= HEADER_BYTES) & (data[starts] == 0)
    is_present = np.ones(len(messages), np.bool_) if messages.absent is None else ~messages.absent
    unframed = np.flatnonzero(~is_framed & is_present)
    if len(unframed):
        rejects.add_text(unframed, "the message does not begin with the header of a schema registry")
    rows = np.flatnonzero(is_framed & is_present)
    places = starts[rows]
    ids = np.zeros(len(rows), np.int64)
    for byte in range(1, HEADER_BYTES):
        ids = ids << 8 | data[places + byte]
    if not len(rows):
        return {}
    first = int(ids[0])
    if bool(np.all(ids == first)):
        return {first: rows}
    return {int(schema_id): rows[ids == schema_id] for schema_id in np.unique(ids).tolist()}
