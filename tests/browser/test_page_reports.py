"""Benchmark reports in the page: recorded results, a service with tokens, both colour schemes, a narrow screen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from headrace.bench.report import write_report
from support.browser_page import ServiceProcess, open_page

pytestmark = pytest.mark.browser

RECORDED = Path(__file__).parents[2] / "docs" / "bench" / "2026-11-16"
TOKEN = "a-token-for-tests-only"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
BACKGROUNDS = {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 19, 24)"}  # of the report, which follows the page


@pytest.fixture(scope="module")
def report_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("reports")
    for name in ("aggregation-1", "join-churn", "profit-1M", "sc1"):
        (folder / "out" / name).mkdir(parents=True)
        shutil.copy(RECORDED / f"{name}.json", folder / "out" / name / "result.json")
        write_report(folder / "out" / name)
    (folder / "tokens").write_text(f"admin ann {TOKEN}\n")
    (folder / "tokens").chmod(0o600)
    process = ServiceProcess(folder / "checkpoint", "--reports", str(folder / "out"), "--tokens", str(folder / "tokens"))
    process.start()
    yield process
    process.kill()


@pytest.fixture
def reports(browser: Browser, report_service: ServiceProcess, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open the list of reports, with the token entered."""
    for page in open_page(browser, report_service, request):
        page.goto("/#/reports")
        page.locator("#token-input").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#report-list a")).to_have_count(4)
        yield page


def test_a_late_401_does_not_request_the_token_again(
    browser: Browser, report_service: ServiceProcess, request: pytest.FixtureRequest
):
    held: list[Route] = []
    for page in open_page(browser, report_service, request):
        page.route("**/v1/queries", lambda route: held.append(route) if not held else route.continue_())
        page.goto("/#/reports")
        page.locator("#token-input").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#report-list a")).to_have_count(4)
        with page.expect_response("**/v1/queries") as response:
            held[0].continue_()
        assert response.value.status == 401
        page.wait_for_timeout(200)
        expect(page.locator("#token")).to_be_hidden()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_report_is_searched_and_opened_by_keys(reports: Page, colours: str):
    reports.emulate_media(color_scheme="null")  # the system's scheme: an emulated scheme would override that of the frames
    if colours == "dark":
        reports.locator("#theme").click()
    expect(reports.get_by_text("No report is open")).to_be_visible()
    reports.locator("body").press("/")
    reports.keyboard.type("flink sustains")
    expect(reports.locator("#report-list a")).to_have_count(1)
    reports.keyboard.press("ArrowDown")
    reports.keyboard.press("Enter")
    report = reports.frame_locator("#report-page iframe")
    expect(report.get_by_role("heading", name="Windowed aggregation")).to_be_visible()
    expect(report.locator(".plot svg.main-svg").first).to_be_visible()  # the scripts of the report ran
    expect(reports.locator("#report")).to_have_attribute("data-state", "some")
    assert reports.frames[1].evaluate(BACKGROUND) == BACKGROUNDS[colours]
    assert reports.frames[1].evaluate("origin") == "null"  # the report cannot read the page or its token
    reports.reload()
    expect(report.get_by_role("heading", name="Windowed aggregation")).to_be_visible()
    expect(report.locator(".plot svg.main-svg").first).to_be_visible()


def test_a_narrow_screen_shows_either_the_list_or_a_report(reports: Page):
    reports.set_viewport_size({"width": 390, "height": 780})
    expect(reports.locator("#report")).to_be_hidden()
    reports.get_by_role("link", name="sc1").click()
    report = reports.frame_locator("#report-page iframe")
    expect(report.locator(".plot svg.main-svg").first).to_be_visible()
    expect(reports.locator("#report-list")).to_be_hidden()
    assert reports.evaluate("document.documentElement.scrollWidth") == 390
    reports.get_by_role("link", name="All reports").click()
    expect(reports.locator("#report-list")).to_be_visible()
    reports.go_back()
    expect(report.locator(".plot svg.main-svg").first).to_be_visible()


def test_missing_reports_and_empty_searches_have_a_message(reports: Page):
    reports.goto("/#/reports/none")
    expect(reports.get_by_text("report 'none' does not exist")).to_be_visible()
    reports.locator("body").press("/")
    reports.keyboard.type("nothing like it")
    expect(reports.get_by_text("No report matches the search.")).to_be_visible()
    reports.keyboard.press("Escape")
    expect(reports.locator("#report-list a")).to_have_count(4)
