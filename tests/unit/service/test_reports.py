"""Reports of benchmarks over HTTP: those of the folder and of folders in it, and nothing that lies elsewhere."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable
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
READ = "r" * 20


def written(folder: Path, *, size: int = 0, **card: object) -> Path:
    """Write a report that is as small as can be."""
    folder.mkdir(parents=True, exist_ok=True)
    said = escape(json.dumps(CARD | card))
    (folder / "report.html").write_text(
        f'<!doctype html><meta name="headrace-report" content="{said}"><p>{folder.name}</p>'.ljust(size)
    )
    return folder / "report.html"


def names(service: Service) -> list[str]:
    return [one["name"] for one in service.http.get("/v1/reports").json()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bench-out"


@pytest.fixture
def service(serve: Callable[..., Service], folder: Path) -> Service:
    return serve(reports=folder)


def test_a_report_that_the_benchmark_wrote_is_listed_and_read(service: Service, folder: Path):
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


def test_a_report_is_allowed_nothing_but_itself(service: Service, folder: Path):
    written(folder)
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
        "sandbox": "allow-scripts",  # and no allow-same-origin: the service, which trusts its own pages, is another's
    }


def test_the_newest_comes_first_whatever_its_folder_is_called(service: Service, folder: Path):
    for name, day in (("b", 12), ("c", 14), ("a", 13)):
        written(folder / name, started_at=f"2026-11-{day}T10:00:00+00:00")
    written(folder, started_at="2026-11-11T10:00:00+02:00")
    assert names(service) == ["c", "a", "b", "bench-out"]
    assert service.http.get("/v1/reports/a").text.endswith("<p>a</p>")


def test_names_may_be_anything_a_folder_may_be_called(service: Service, folder: Path):
    for name in ("mit Leer & ü", "100%", "a#b?c", "..."):
        written(folder / name)
    found = service.http.get("/v1/reports").json()
    assert len(found) == 4
    for one in found:
        asked = "".join(f"%{byte:02x}" for byte in one["name"].encode())
        assert one["name"] in service.http.get(f"/v1/reports/{asked}").text


def test_without_a_folder_there_are_none(serve: Callable[..., Service], tmp_path: Path):
    (tmp_path / "file").touch()
    for reports in (None, tmp_path / "nowhere", tmp_path / "file"):
        service = serve(reports=reports)
        assert service.http.get("/v1/reports").json() == []
        answer = service.http.get("/v1/reports/bench-out")
        assert (answer.status_code, answer.json()["error"]) == (404, "report 'bench-out' does not exist")


@pytest.mark.parametrize(
    "name",
    [
        "..", "%2e%2e", "..%2f", "%2e%2e%2foutside", "..%5coutside", "outside", "good%2freport.html", "good/report.html",
        "good%2f..%2fgood", "%2f{outside}", "{outside}", "report.html", "good%00", ".", "", "good%20",
    ],
)  # fmt: skip
def test_only_names_that_are_listed_are_read(service: Service, folder: Path, tmp_path: Path, name: str):
    written(tmp_path / "outside")
    written(folder / "good")
    assert service.http.get("/v1/reports/good").status_code == 200
    asked = f"/v1/reports/{name.format(outside=tmp_path / 'outside')}"
    answer = service.http.get("/", extensions={"target": asked.encode()})  # as it is: httpx would take the dots away
    assert answer.status_code == (307 if asked.endswith(("/", "%2f")) else 404)  # to the same without a slash at its end
    assert "<p>" not in answer.text


def test_links_that_lead_out_of_the_folder_are_not_followed(service: Service, folder: Path, tmp_path: Path):
    outside = written(tmp_path / "outside")
    inside = written(folder / "inside")
    (folder / "folder").symlink_to(outside.parent)
    for name, target in (("file", outside), ("within", inside), ("none", folder / "nothing"), ("itself", None)):
        (folder / name).mkdir()
        (folder / name / "report.html").symlink_to(target or folder / name / "report.html")
    assert sorted(names(service)) == ["inside", "within"]
    for name in ("folder", "file", "none", "itself"):
        assert service.http.get(f"/v1/reports/{name}").status_code == 404


def test_what_is_no_report_is_left_out_and_the_others_are_not_hurt(serve: Callable[..., Service], folder: Path):
    service = serve(reports=folder, limits=ServiceLimits(report_bytes=5_000))
    good = written(folder / "good")
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
    written(folder / "large", size=5_001)
    (folder / "directory" / "report.html").mkdir(parents=True)
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "report.html")
    strange = os.fsencode(folder) + b"/\xff\xfe"
    Path(os.fsdecode(strange)).mkdir()
    shutil.copy(good, os.fsdecode(strange))
    assert names(service) == ["good"]
    for name in (*broken, "large", "directory", "pipe", "%ff%fe"):
        assert service.http.get(f"/v1/reports/{name}").status_code == 404


def test_a_token_is_needed_and_any_will_do(serve: Callable[..., Service], folder: Path):
    written(folder)
    service = serve(reports=folder, tokens=TokenRegistry([(READ, Identity("rita", Role.read))]))
    for path in ("/v1/reports", "/v1/reports/bench-out", "/v1/reports/none"):
        assert service.http.get(path).status_code == 401
    allowed = {"Authorization": f"Bearer {READ}"}
    assert [one["name"] for one in service.http.get("/v1/reports", headers=allowed).json()] == ["bench-out"]
    assert service.http.get("/v1/reports/bench-out", headers=allowed).status_code == 200


def test_they_are_looked_for_where_the_benchmark_writes_them():
    served = inspect.signature(serve_command.command).parameters["reports"].default
    assert served == inspect.signature(run_command).parameters["out"].default == Path("bench-out")
