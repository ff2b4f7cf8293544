"""Benchmark reports over HTTP: those of the folder and its direct subfolders, and no file outside."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from html import escape
from pathlib import Path

import pytest

from headrace.bench.report import write_report
from headrace.cli import serve as serve_command
from headrace.cli.bench import run_command
from headrace.service.admission import ServiceLimits
from headrace.service.auth import Identity, Role, TokenRegistry
from support.in_process_service import Service

RECORDED = Path(__file__).parents[3] / "docs" / "bench" / "2026-11-16"
CARD = {
    "title": "Joins", "scenarios": ["join"], "systems": ["headrace"], "started_at": "2026-11-15T10:00:00+00:00", "runs": 1,
    "failed": 0, "headline": "",
}  # fmt: skip
WRITE, ADMIN = "w" * 20, "a" * 20


def write_minimal_report(folder: Path, *, size: int = 0, **card: object) -> Path:
    """Write a minimal report."""
    folder.mkdir(parents=True, exist_ok=True)
    content = escape(json.dumps(CARD | card))
    (folder / "report.html").write_text(
        f'<!doctype html><meta name="headrace-report" content="{content}"><p>{folder.name}</p>'.ljust(size)
    )
    return folder / "report.html"


def list_report_names(service: Service) -> list[str]:
    return [report["name"] for report in service.http.get("/v1/reports").json()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bench-out"


@pytest.fixture
def service(serve: Callable[..., Service], folder: Path) -> Service:
    return serve(reports=folder)


def test_a_report_written_by_the_benchmark_is_listed_and_served(service: Service, folder: Path):
    folder.mkdir()
    shutil.copy(RECORDED / "aggregation-1.json", folder / "result.json")
    file = write_report(folder)
    (listed,) = service.http.get("/v1/reports").json()
    assert listed.pop("headline").startswith("With 1 query, headrace sustains ")
    assert listed == {
        "name": "bench-out", "title": "Windowed aggregation", "scenarios": ["aggregation"], "runs": 4, "failed": 0,
        "systems": ["headrace", "flink", "spark", "limit"], "started_at": "2026-11-16T03:22:42Z",
        "size_bytes": file.stat().st_size,
    }  # fmt: skip
    answer = service.http.get("/v1/reports/bench-out")
    assert answer.status_code == 200
    assert answer.content == file.read_bytes()


def test_the_content_security_policy_isolates_a_report(service: Service, folder: Path):
    write_minimal_report(folder)
    headers = service.http.get("/v1/reports/bench-out").headers
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'unsafe-inline'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "sandbox": "allow-scripts",  # without allow-same-origin: a report cannot call the service as its own page
    }


def test_reports_are_listed_newest_first(service: Service, folder: Path):
    for name, day in (("b", 12), ("c", 14), ("a", 13)):
        write_minimal_report(folder / name, started_at=f"2026-11-{day}T10:00:00+00:00")
    write_minimal_report(folder, started_at="2026-11-11T10:00:00+02:00")
    assert list_report_names(service) == ["c", "a", "b", "bench-out"]
    assert service.http.get("/v1/reports/a").text.endswith("<p>a</p>")


def test_reports_can_have_any_folder_name(service: Service, folder: Path):
    for name in ("mit Leer & ü", "100%", "a#b?c", "..."):
        write_minimal_report(folder / name)
    reports = service.http.get("/v1/reports").json()
    assert len(reports) == 4
    for report in reports:
        quoted = "".join(f"%{byte:02x}" for byte in report["name"].encode())
        assert report["name"] in service.http.get(f"/v1/reports/{quoted}").text


def test_the_list_is_empty_without_a_folder(serve: Callable[..., Service], tmp_path: Path):
    (tmp_path / "file").touch()
    for reports in (None, tmp_path / "nowhere", tmp_path / "file"):
        service = serve(reports=reports)
        assert service.http.get("/v1/reports").json() == []
        answer = service.http.get("/v1/reports/bench-out")
        assert (answer.status_code, answer.json()["error"]) == (404, "report 'bench-out' does not exist")


@pytest.fixture(scope="module")
def service_with_report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Path]]:
    """A service with the report good, and a folder with a report that is outside; no test changes them."""
    folder = tmp_path_factory.mktemp("reports")
    write_minimal_report(folder / "outside")
    write_minimal_report(folder / "bench-out" / "good")
    with closing(Service(folder / "checkpoint", reports=folder / "bench-out")) as service:
        yield service, folder / "outside"


@pytest.mark.parametrize(
    "name",
    [
        "..", "%2e%2e", "..%2f", "%2e%2e%2foutside", "..%5coutside", "outside", "good%2freport.html", "good/report.html",
        "good%2f..%2fgood", "%2f{outside}", "{outside}", "report.html", "good%00", ".", "", "good%20",
    ],
)  # fmt: skip
def test_only_listed_reports_are_served(service_with_report: tuple[Service, Path], name: str):
    service, outside = service_with_report
    assert service.http.get("/v1/reports/good").status_code == 200
    target = f"/v1/reports/{name.format(outside=outside)}"
    answer = service.http.get("/", extensions={"target": target.encode()})  # unnormalized: httpx would remove the dots
    assert answer.status_code == (307 if target.endswith(("/", "%2f")) else 404)  # redirected to the path without the final slash
    assert "<p>" not in answer.text


def test_links_that_lead_out_of_the_folder_are_not_followed(service: Service, folder: Path, tmp_path: Path):
    outside = write_minimal_report(tmp_path / "outside")
    inside = write_minimal_report(folder / "inside")
    (folder / "folder").symlink_to(outside.parent)
    for name, target in (("file", outside), ("within", inside), ("none", folder / "nothing"), ("itself", None)):
        (folder / name).mkdir()
        (folder / name / "report.html").symlink_to(target or folder / name / "report.html")
    assert sorted(list_report_names(service)) == ["inside", "within"]
    for name in ("folder", "file", "none", "itself"):
        assert service.http.get(f"/v1/reports/{name}").status_code == 404


def test_invalid_reports_are_skipped(serve: Callable[..., Service], folder: Path):
    service = serve(reports=folder, limits=ServiceLimits(report_bytes=5_000))
    good = write_minimal_report(folder / "good")
    broken = {
        "empty": b"",
        "binary": bytes(range(256)),
        "foreign": b"<!doctype html><p>not ours</p>",
        "nothing": b'<meta name="headrace-report" content="">',
        "cut": good.read_bytes()[:80],
        "other": good.read_bytes().replace(b"scenarios", b"scenario"),
        "ageless": good.read_bytes().replace(b"2026-11-15", b"yesterday!"),
        "late": b" " * (1 << 16) + good.read_bytes(),
    }
    for name, content in broken.items():
        (folder / name).mkdir()
        (folder / name / "report.html").write_bytes(content)
    write_minimal_report(folder / "large", size=5_001)
    (folder / "directory" / "report.html").mkdir(parents=True)
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "report.html")
    strange = os.fsencode(folder) + b"/\xff\xfe"
    Path(os.fsdecode(strange)).mkdir()
    shutil.copy(good, os.fsdecode(strange))
    assert list_report_names(service) == ["good"]
    for name in (*broken, "large", "directory", "pipe", "%ff%fe"):
        assert service.http.get(f"/v1/reports/{name}").status_code == 404


def test_reports_need_the_role_admin(serve: Callable[..., Service], folder: Path):
    write_minimal_report(folder)
    tokens = TokenRegistry([(WRITE, Identity("will", Role.write_all)), (ADMIN, Identity("ada", Role.admin))])
    service = serve(reports=folder, tokens=tokens)
    for path in ("/v1/reports", "/v1/reports/bench-out", "/v1/reports/none"):
        assert service.http.get(path).status_code == 401
        assert service.http.get(path, headers={"Authorization": f"Bearer {WRITE}"}).status_code == 403
    allowed = {"Authorization": f"Bearer {ADMIN}"}
    assert [report["name"] for report in service.http.get("/v1/reports", headers=allowed).json()] == ["bench-out"]
    assert service.http.get("/v1/reports/bench-out", headers=allowed).status_code == 200


def test_the_default_report_folder_is_the_default_output_of_the_benchmark():
    served = inspect.signature(serve_command.command).parameters["reports"].default
    assert served == inspect.signature(run_command).parameters["out"].default == "bench-out"
