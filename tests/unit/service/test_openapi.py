"""All that the description promises, asked at random: no answer it does not know of, and none that is the server's fault."""

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

PROMISES = [
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
    found = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    yield found.exclude(path_regex="/live$")  # it never ends
    service.close()


def test_answers_are_those_described(api: schemathesis.BaseSchema) -> None:
    wrong = []
    for found in api.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=scale_examples(15), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=PROMISES, timeout=30)

        try:
            ask()
        except Exception as error:  # noqa: BLE001  all paths are asked, whatever one of them answers
            wrong.append(f"{operation.method.upper()} {operation.path}: {error}")
    assert not wrong, "\n\n".join(wrong)


def test_all_paths_are_described(api: schemathesis.BaseSchema) -> None:
    paths = {operation.ok().path for operation in api.get_all_operations()}
    assert {"/v1/queries", "/v1/queries/{name}", "/v1/queries/{name}/results", "/v1/streams", "/v1/plan", "/metrics"} <= paths
