"""Files of the page: headers, content types, and no reference to other sites."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace.service
from headrace.service.auth import Identity, Role, TokenRegistry
from support.in_process_service import Service

PAGE = Path(headrace.service.__file__).parent / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file())
OWN_FILES = [path for path in FILES if path.parent.name != "vendor" and path.suffix in {".js", ".css", ".html"}]
MAX_LINES = 300


def test_the_page_is_served_without_a_token_and_loads_from_its_own_origin_only(serve: Callable[..., Service]):
    service = serve(tokens=TokenRegistry([("t" * 20, Identity("ann", Role.read))]))
    answer = service.http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_report_frame_runs_inline_scripts_in_a_sandbox(unchanged_service: Service):
    assert "frame-src 'self'" in unchanged_service.http.get("/").headers["content-security-policy"]
    policy = unchanged_service.http.get("/page/report_frame.html").headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'unsafe-inline'", "sandbox allow-scripts", "frame-ancestors 'self'"):
        assert part in policy.split("; ")


def test_files_have_their_content_type_and_are_revalidated(unchanged_service: Service):
    kinds = {
        "js/main.js": "text/javascript",
        "css/base.css": "text/css",
        "icon.svg": "image/svg+xml",
        "vendor/uplot.js": "text/javascript",
    }
    for name, kind in kinds.items():
        answer = unchanged_service.http.get(f"/page/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["cache-control"] == "no-cache"
        again = unchanged_service.http.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_content_types_do_not_depend_on_the_machine(unchanged_service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("starlette.responses.guess_type", lambda _: ("text/plain", None))
    assert unchanged_service.http.get("/page/js/main.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path", ["/page/", "/page/js", "/page/none.js", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page//etc/passwd"]
)
def test_other_paths_are_not_served(unchanged_service: Service, path: str):
    assert unchanged_service.http.get(path).status_code == 404


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.name)
def test_files_refer_to_existing_files_and_no_other_site(path: Path):
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"""["'(](/page/[^"')]+)""", text))
    assert [name for name in sorted(named) if not (PAGE / name.removeprefix("/page/")).is_file()] == []
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert len(text.splitlines()) <= MAX_LINES


def test_markup_has_no_inline_code_or_styles():
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used_ids = {name for path in OWN_FILES for name in re.findall(r'\bat\("([\w-]+)"\)', path.read_text(encoding="utf-8"))}
    assert used_ids <= set(ids)


def test_licences_of_all_bundled_packages_are_included():
    text = (PAGE / "vendor" / "LICENSES.txt").read_text(encoding="utf-8")
    for package in ("@codemirror/view", "@codemirror/lang-sql", "@lezer/common", "style-mod", "uplot"):
        assert re.search(rf"^{re.escape(package)} [\d.]+ \(MIT\)$", text, re.MULTILINE)
