"""Fixtures: a service with generated streams, and its page in Chromium. A missing dependency fails the tests; none is skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

try:
    from playwright.sync_api import Browser, Page, expect, sync_playwright

    from support.browser_page import TIMEOUT_MS, ServiceProcess, open_page
except ImportError as error:
    raise RuntimeError("the browser tests need playwright: pip install -e '.[dev]'") from error

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(
            f"the browser tests need Chromium ({', '.join(NAMES)}): apt-get install chromium, or set CHROMIUM to its path"
        )
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = started.chromium.launch(executable_path=path, args=options)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("served"), "--demo")
    process.start()
    yield process
    process.kill()


@pytest.fixture
def page(browser: Browser, service: ServiceProcess, request: pytest.FixtureRequest) -> Iterator[Page]:
    yield from open_page(browser, service, request)
