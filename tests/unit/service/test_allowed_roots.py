"""Files that requests may name: below an allowed root after links are resolved, never in the checkpoint, with the role admin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from headrace.service.allowed_roots import AllowedRoots
from headrace.service.auth import Identity, Role, TokenRegistry
from headrace.service.problems import ForbiddenPathError
from support.in_process_service import Service

ROWS = "k,time\n1,2026-01-01T00:00:00Z\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Folders `open` (the root) and `closed`, with a file each, and links from one to the other."""
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text(ROWS)
    (tmp_path / "open" / "folder").mkdir()
    (tmp_path / "open" / "folder" / "more.csv").write_text(ROWS)
    (tmp_path / "open" / "escape").symlink_to(tmp_path / "closed")
    (tmp_path / "open" / "inside").symlink_to(tmp_path / "open" / "folder")
    (tmp_path / "closed" / "back").symlink_to(tmp_path / "open" / "folder")
    (tmp_path / "into").symlink_to(tmp_path / "open")
    (tmp_path / "open-too").mkdir()
    return tmp_path


def declare(service: Service, path: str, name: str = "rows", **options):
    body = {"source": "files", "name": name, "path": path, "format": "csv", "time": "time", "columns": "k INT, time TIMESTAMP"}
    return service.http.post("/v1/streams", json=body, **options)


ALLOWED = ["open", "open/rows.csv", "open/*.csv", "open/**/*.csv", "open/folder/../rows.csv", "open/inside", "into", "into/*.csv"]
REFUSED = [
    "", "closed", "closed/rows.csv", "open/../closed", "open/../closed/*.csv", "open/escape", "open/escape/rows.csv",
    "open/escape/*.csv", "*/rows.csv", "open*", "open-too", "open/*/../../closed/*.csv", "closed/back/../rows.csv",
    "closed/back/../*.csv", "open/checkpoint", "open/checkpoint/tokens",
    "nowhere", "/",
    "/etc/passwd", "/proc/self/environ", ".", "..", "~", "~/x.csv", "~nobody-has-this-name/x.csv", "a\x00b", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("path", ALLOWED)
def test_a_path_below_a_root_is_allowed(tree: Path, path: str):
    AllowedRoots([tree / "open"], tree / "open" / "checkpoint").check(str(tree / path))


@pytest.mark.parametrize("path", REFUSED)
def test_any_other_path_is_refused(tree: Path, path: str):
    given = path if path[:1] in {"/", "~", ".", "\ud800", ""} and path else str(tree / path)
    roots = AllowedRoots([tree / "open"], tree / "open" / "checkpoint")
    with pytest.raises(ForbiddenPathError, match="is not below an allowed root") as refused:
        roots.check(given)
    assert refused.value.detail == f"allowed roots: {tree / 'open'}"


def test_a_relative_path_starts_at_the_folder_of_the_process(tree: Path, monkeypatch: pytest.MonkeyPatch):
    roots = AllowedRoots([tree / "open"], tree / "checkpoint")
    monkeypatch.chdir(tree / "open")
    roots.check(".")
    monkeypatch.chdir(tree / "closed")
    with pytest.raises(ForbiddenPathError):
        roots.check(".")


def test_urls_and_schemes_are_no_names_below_the_folder_of_the_process(tree: Path, monkeypatch: pytest.MonkeyPatch):
    roots = AllowedRoots([tree / "open"], tree / "checkpoint")
    monkeypatch.chdir(tree / "open")
    for path in ("s3://bucket/rows.csv", "S3A://bucket/*.csv", "file:/etc/passwd", "hdfs://nn/x", f"file:{tree}/closed"):
        with pytest.raises(ForbiddenPathError):
            roots.check(path)
    assert not roots.contains("s3://bucket/rows.csv")
    roots.check(f"file:{tree}/open/rows.csv")


def test_a_root_may_itself_be_a_link(tree: Path):
    AllowedRoots([tree / "into"], tree / "checkpoint").check(str(tree / "open" / "rows.csv"))


def test_a_root_must_be_a_directory(tree: Path):
    for name in ("nowhere", "open/rows.csv"):
        with pytest.raises(HeadraceError, match=r"allowed root '.*' is not a directory"):
            AllowedRoots([tree / name], tree / "checkpoint")


def test_without_a_root_requests_name_no_files(serve: Callable[..., Service], tree: Path):
    service = serve()
    refused = declare(service, str(tree / "open"))
    assert refused.status_code == 403
    assert (refused.json()["detail"], "--allow-root" in refused.json()["hint"]) == ("allowed roots: none", True)
    assert service.http.get("/v1/streams").json() == []


def test_a_refused_stream_is_not_saved(serve: Callable[..., Service], tree: Path):
    service = serve(allowed_roots=[tree / "open"])
    assert declare(service, str(tree / "closed")).status_code == 403
    assert declare(service, str(tree / "open" / "folder")).status_code == 201
    service.restart()
    assert [stream["source"]["path"] for stream in service.http.get("/v1/streams").json()] == [str(tree / "open" / "folder")]


def test_links_below_the_path_and_later_files_stay_inside(serve: Callable[..., Service], tree: Path):
    """A folder whose links lead out: neither the first columns nor the rows behind a link are read."""
    service = serve(allowed_roots=[tree / "open"])
    (tree / "closed" / "secret.csv").write_text("password,time\nhunter2,2026-01-01T00:00:00Z\n")
    (tree / "open" / "folder" / "a.csv").symlink_to(tree / "closed" / "secret.csv")
    os.utime(tree / "open" / "folder" / "more.csv", (2e9, 2e9))  # the link is the first file by time
    body = {"source": "files", "name": "rows", "path": str(tree / "open" / "folder"), "time": "time"}
    declared = service.http.post("/v1/streams", json=body)
    assert [column["name"] for column in declared.json()["columns"]] == ["k", "time"]
    service.wait_until(lambda: service.session.streams()["rows"]["rows"] == 1)
    for name in ("later.csv", "pattern[1]*.csv"):
        (tree / "open" / "folder" / name).symlink_to(tree / "closed" / "rows.csv")
    (tree / "open" / "folder" / "last.csv").write_text(ROWS)
    service.wait_until(lambda: service.session.streams()["rows"]["rows"] == 2)
    stream = service.http.get("/v1/streams/rows").json()
    assert stream["rows"] == 2
    reason = "it leads outside the allowed roots"
    assert stream["skipped"] == {
        str(tree / "open" / "folder" / name): reason for name in ("a.csv", "later.csv", "pattern[1]*.csv")
    }
    assert "hunter2" not in service.http.get("/v1/streams/rows/sample").text


def test_a_restart_without_the_root_names_the_stream(serve: Callable[..., Service], tree: Path):
    service = serve(allowed_roots=[tree / "open"])
    assert declare(service, str(tree / "open")).status_code == 201
    service.close()
    service.allowed_roots = ()
    with pytest.raises(ForbiddenPathError, match="cannot open stream 'rows', which was declared by a request") as refused:
        service.restart()
    assert "--allow-root" in refused.value.hint
    service.session.close()
    service.allowed_roots = [tree / "open"]
    service.restart()


def test_streams_of_the_operator_need_no_root(serve: Callable[..., Service], tree: Path):
    service = serve()
    service.session.create_stream("rows", hr.FileSource(tree / "closed", schema="k INT, time TIMESTAMP"), time="time")
    service.wait_until(lambda: service.session.streams()["rows"]["rows"] == 1)


def test_file_streams_need_the_role_admin(serve: Callable[..., Service], tree: Path):
    tokens = {role: role.label * 20 for role in Role}
    registry = TokenRegistry((token, Identity("u", role)) for role, token in tokens.items())
    service = serve(allowed_roots=[tree / "open"], tokens=registry)
    for role, status in ((Role.read, 403), (Role.write, 403), (Role.write_all, 403), (Role.admin, 201)):
        answer = declare(service, str(tree / "open"), headers={"Authorization": f"Bearer {tokens[role]}"})
        assert answer.status_code == status
