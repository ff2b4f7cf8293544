"""A schema registry on loopback with Confluent's interface: subjects, versions, ids, and a basic check of compatibility."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class RegistryServer:
    """Equal schemas have one id in all subjects. A new Avro version must not add a field without a default (BACKWARD)."""

    def __init__(self, password: str = "") -> None:
        self.schemas: list[dict] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.expected = f"Basic {base64.b64encode(f'user:{password}'.encode()).decode()}" if password else ""
        self.failing = False
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: tuple = ()) -> int:
        status, answer = self.answer(
            "POST", f"/subjects/{subject}/versions", {"schema": schema, "schemaType": kind, "references": list(references)}
        )
        assert status == 200, answer
        return answer["id"]

    def answer(self, method: str, path: str, body: dict | None) -> tuple[int, object]:
        with self._lock:
            if self.failing:
                return 500, {"error_code": 50001, "message": "error in the backend data store"}
            if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
                number = int(match[1])
                if not 1 <= number <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, {key: value for key, value in self.schemas[number - 1].items() if value and value != "AVRO"}
            if path == "/subjects":
                return 200, list(self.subjects)
            match = re.fullmatch(r"/subjects/([^/]+)/versions(?:/(\d+|latest))?", path)
            if match is None:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
            subject = unquote(match[1])
            if method == "POST":
                return self._register(subject, body or {})
            versions = self.subjects.get(subject)
            if versions is None:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            if match[2] is None:
                return 200, [number + 1 for number in range(len(versions))]
            version = len(versions) if match[2] == "latest" else int(match[2])
            if not 1 <= version <= len(versions):
                return 404, {"error_code": 40402, "message": f"Version {version} not found."}
            schema_id = versions[version - 1]
            return 200, {"subject": subject, "version": version, "id": schema_id, **self.schemas[schema_id - 1]}

    def _register(self, subject: str, body: dict) -> tuple[int, object]:
        schema = {
            "schema": body["schema"],
            "schemaType": body.get("schemaType", "AVRO"),
            "references": body.get("references", []),
        }
        if schema["schemaType"] == "AVRO":
            try:
                fields = json.loads(schema["schema"])
            except ValueError:
                return 422, {"error_code": 42201, "message": "Invalid schema"}
            versions = self.subjects.get(subject, [])
            if versions and not _is_backward(fields, json.loads(self.schemas[versions[-1] - 1]["schema"])):
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible with an earlier schema"}
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        if schema_id not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(schema_id)
        return 200, {"id": schema_id}

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                server.requests.append(f"{self.command} {self.path}")
                if server.expected and self.headers.get("Authorization") != server.expected:
                    status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
                else:
                    status, answer = server.answer(self.command, self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _serve  # noqa: N815

        return Handler


def _is_backward(new: dict, old: dict) -> bool:
    known = {field["name"] for field in old.get("fields", [])}
    return all(field["name"] in known or "default" in field for field in new.get("fields", []))


@contextmanager
def run_registry(password: str = "") -> Iterator[RegistryServer]:
    server = RegistryServer(password)
    server.start()
    try:
        yield server
    finally:
        server.stop()
