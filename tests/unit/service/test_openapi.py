"""Random requests from the OpenAPI description: every response conforms to it, and none is a server error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.examples import scale_examples
from support.in_process_service import Service

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    folder: Path = tmp_path_factory.mktemp("service")
    service = Service(folder / "checkpoint")
    service.declare()
    service.add(name="q")
    service.append(0.5, 1.5)
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    yield schema.exclude(path_regex="/live$")  # an endless response
    service.close()


def test_responses_conform_to_the_description(api: schemathesis.BaseSchema) -> None:
    failures = []
    for result in api.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=scale_examples(15), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def send_request(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=30)

        try:
            send_request()
        except Exception as error:  # noqa: BLE001  all paths are tested, also after a failure
            failures.append(f"{operation.method.upper()} {operation.path}: {error}")
    assert not failures, "\n\n".join(failures)


def test_all_paths_are_described(api: schemathesis.BaseSchema) -> None:
    paths = {operation.ok().path for operation in api.get_all_operations()}
    assert {"/v1/queries", "/v1/queries/{name}", "/v1/queries/{name}/results", "/v1/streams", "/v1/plan", "/metrics"} <= paths
