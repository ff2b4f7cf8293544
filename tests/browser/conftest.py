"""A service that makes up its own rows, and Chromium looking at it. What is missing fails: nothing is skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

try:
    from playwright.sync_api import Browser, Page, expect, sync_playwright

    from support.browsing import PATIENCE_MS, Service, watched
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
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = started.chromium.launch(executable_path=path, args=options)
        yield found
        found.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("served"), "--demo")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def page(browser: Browser, service: Service, request: pytest.FixtureRequest) -> Iterator[Page]:
    yield from watched(browser, service, request)
