"""The page in a browser: keys and clicks against a service with generated streams."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from support.browser_page import ServiceProcess, open_page

pytestmark = pytest.mark.browser

TOTALS = "SELECT window_start, gem_pack, SUM(price) AS total FROM TUMBLE(purchases, '1 second') GROUP BY gem_pack"
FRAMES = """() => new Promise(done => {
    let frames = 0;
    const end = performance.now() + 1500;
    const step = () => { frames++; performance.now() < end ? requestAnimationFrame(step) : done(frames); };
    step();
})"""
TOKEN = "a-token-for-tests-only"


def write_query(page: Page, sql: str, name: str = "") -> None:
    page.locator("#editor .cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(sql)
    if name:
        page.locator("#query-name").fill(name)


def find_query_row(page: Page, name: str) -> Locator:
    return page.get_by_role("option").filter(has_text=re.compile(rf"^{re.escape(name)}\d"))


def read_row_count(page: Page) -> int:
    return int(re.sub(r"\D", "", page.locator("#results-count").inner_text()) or 0)


def test_the_suggested_query_runs_with_a_single_key(page: Page):
    page.goto("/")
    expect(page.locator("#editor .cm-content")).to_contain_text("FROM TUMBLE(purchases")  # a query is suggested
    expect(page.locator("#answer")).to_contain_text("output")
    page.locator("#editor .cm-content").press("ControlOrMeta+Enter")
    expect(page.locator("#chart canvas")).to_be_visible()
    expect(page.locator("#results")).to_have_attribute("data-kind", "line")
    expect(page.locator(".legend-entry")).to_have_count(10)


def test_a_typed_query_is_added_shown_and_removed(page: Page):
    page.goto("/#/new")
    write_query(page, TOTALS, name="typed")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#status")).to_have_text("live")
    expect(page.locator("#table tbody tr").first).to_be_visible()
    before = read_row_count(page)
    expect(page.locator("#table thead")).to_contain_text("total")
    page.wait_for_function(
        "before => parseInt(document.getElementById('results-count').textContent.replace(/\\D/g, '')) > before", arg=before
    )
    page.get_by_role("button", name="Bars").click()
    expect(page.locator("#results")).to_have_attribute("data-kind", "bars")
    page.get_by_role("button", name="Remove").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#workbench-title")).to_have_text("New query")
    expect(find_query_row(page, "typed")).to_have_count(0)


def test_an_error_is_marked_in_the_editor(page: Page):
    page.goto("/#/new")
    write_query(page, "SELECT window_start, SUM(cost) AS total\nFROM TUMBLE(purchases, '1 second')")
    expect(page.locator("#answer")).to_contain_text("line 1, column 26")
    expect(page.locator("#editor .cm-lintRange-error")).to_have_text("cost")
    expect(page.locator("#editor .cm-lint-marker-error")).to_have_count(1)
    page.keyboard.press("ControlOrMeta+Enter")
    expect(page.locator("#answer")).to_have_attribute("data-kind", "problem")
    expect(page.locator("#workbench-title")).to_have_text("New query")
    write_query(page, TOTALS)
    expect(page.locator("#answer")).to_contain_text("output")
    expect(page.locator("#editor .cm-lintRange-error")).to_have_count(0)


def test_streams_and_their_columns_are_completed(page: Page):
    page.goto("/#/new")
    write_query(page, "SELECT p. FROM TUMBLE(purchases, '1 second') p")
    page.keyboard.press("Home")
    for _ in "SELECT p.":
        page.keyboard.press("ArrowRight")
    page.keyboard.type("ge")
    expect(page.locator("#editor .cm-tooltip-autocomplete")).to_contain_text("gem_pack")
    page.wait_for_timeout(200)  # the editor ignores Enter right after its popup opens
    page.keyboard.press("Enter")
    expect(page.locator("#editor .cm-content")).to_contain_text("SELECT p.gem_pack FROM")
    write_query(page, "SELECT x FROM ")
    page.keyboard.type("pur")
    expect(page.locator("#editor .cm-tooltip-autocomplete")).to_contain_text("purchases")


def test_a_reload_shows_the_same_query(page: Page, service: ServiceProcess):
    service.request("POST", "/v1/queries", {"sql": TOTALS, "name": "kept"})
    page.goto("/#/q/kept")
    expect(page.locator("#workbench-title")).to_have_text("kept")
    expect(page.locator("#chart canvas")).to_be_visible()
    page.reload()
    expect(page.locator("#workbench-title")).to_have_text("kept")
    expect(page.locator("#editor .cm-content")).to_contain_text("TUMBLE(purchases, '1 second')")
    expect(page.locator("#chart canvas")).to_be_visible()


def test_the_query_list_is_searched_and_opened_by_keys(page: Page, service: ServiceProcess):
    service.request(
        "POST", "/v1/queries", {"sql": "SELECT user_id, price, time FROM purchases WHERE price > 99", "name": "dear_ones"}
    )
    page.goto("/")
    expect(find_query_row(page, "dear_ones")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("dear")
    expect(page.get_by_role("option").filter(visible=True)).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#workbench-title")).to_have_text("dear_ones")
    expect(page.locator("#table tbody tr").first).to_be_visible()


def test_a_query_is_replaced(page: Page, service: ServiceProcess):
    service.request("POST", "/v1/queries", {"sql": TOTALS, "name": "changing"})
    page.goto("/#/q/changing")
    expect(page.locator("#workbench-title")).to_have_text("changing")
    expect(page.get_by_role("button", name="Replace")).to_be_disabled()
    write_query(page, "SELECT window_end, COUNT(*) AS sold FROM TUMBLE(purchases, '1 second')")
    page.keyboard.press("ControlOrMeta+Enter")
    expect(page.locator("#table thead")).to_contain_text("sold")
    expect(page.locator("#table tbody tr").first).to_be_visible()


def test_ten_thousand_rows_a_second_are_sampled(page: Page, service: ServiceProcess):
    fast = {"name": "fast", "source": "rate", "rows_per_second": 12_000, "time": "time"}
    service.request("POST", "/v1/streams", fast)
    service.request("POST", "/v1/queries", {"sql": "SELECT gem_pack, price, time FROM fast", "name": "flood"})
    page.goto("/#/q/flood")
    expect(page.locator("#results-sampled")).to_contain_text("sampled")
    expect(page.locator("#table tbody tr")).to_have_count(200)
    frames = page.evaluate(FRAMES)
    service.request("DELETE", "/v1/queries/flood")
    assert frames > 15  # the page still renders


def test_evicted_rows_are_shown_as_missed(page: Page, service: ServiceProcess):
    service.request("POST", "/v1/queries", {"sql": TOTALS, "name": "gappy"})
    columns = [{"name": "total", "type": "DOUBLE"}]
    events = (("columns", columns), ("missed", {"from": "1.0", "to": "9.0"}), ("rows", {"rows": [[1.5]], "left_out": 0}))
    body = "".join(f"event: {kind}\nid: 9.0\ndata: {json.dumps(data)}\n\n" for kind, data in events)
    page.route(re.compile("/v1/queries/gappy/live"), lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.goto("/#/q/gappy")
    expect(page.locator("#results-sampled")).to_have_text("some rows are no longer kept and were missed")


def test_hovering_a_query_highlights_its_operators(page: Page, service: ServiceProcess):
    service.request("POST", "/v1/queries", {"sql": TOTALS, "name": "lit"})
    page.goto("/#/plan")
    box = page.locator(".box-query").filter(has_text=re.compile("^lit$"))
    box.hover()
    expect(page.locator(".box-query.lit")).to_have_count(1)
    expect(page.locator(".box-stream.lit")).to_have_count(1)
    expect(page.locator(".box-aggregation.lit")).to_have_count(1)
    expect(page.locator(".link-line.lit")).to_have_count(2)
    box.click()
    expect(page.locator("#workbench-title")).to_have_text("lit")


def test_the_timeline_shows_added_queries(page: Page):
    page.goto("/#/time")
    expect(page.locator(".time-picture .batch").first).to_be_attached()
    expect(page.locator("#event-rows .event-added").first).to_be_visible()


def test_the_tiles_show_rates_and_watermark(page: Page):
    page.goto("/")
    for tile in ("in", "live", "watermark"):
        expect(page.locator(f"[data-tile={tile}] .tile-value")).not_to_have_text("–")


def test_a_query_shows_latency_state_and_cost(page: Page, service: ServiceProcess):
    service.request("POST", "/v1/queries", {"sql": TOTALS, "name": "measured"})
    page.goto("/#/q/measured")
    expect(page.locator("#facts")).to_have_text(
        re.compile(r"latency [\d.]+\s(ms|s).*state [\d.]+\s(B|KiB).*cost .+/s, standalone .+/s")
    )
    for sort, unit in (("latency", "m?s"), ("state", "(B|KiB)")):
        page.locator("#query-sort").select_option(sort)
        figure = page.locator(".query-row[aria-selected=true] .row-figure")
        expect(figure).to_have_text(re.compile(rf"^[\d.]+\s{unit}$"))
    page.locator("#query-sort").select_option("newest")


def test_unknown_statistics_are_dashes_and_long_latencies_are_days(page: Page):
    names = {"old": {"latency_seconds": {"p50": 320 * 86_400, "p95": 330 * 86_400}}, "unknown": {"cost": None}, "null": {}}
    query = {
        "sql": TOTALS, "status": "live", "error": "", "columns": [], "emitted": 0, "late": {}, "owner": "", "rows_per_second": 0,
        "deployment_seconds": None,
    }  # fmt: skip
    nothing = {"latency_seconds": None, "state_bytes": None, "cost": None}
    queries = [
        {**query, **({} if name == "unknown" else nothing), **fields, "name": name, "id": number}
        for number, (name, fields) in enumerate(names.items())
    ]
    page.route(re.compile("/v1/queries$"), lambda route: route.fulfill(json=queries))
    page.goto("/")
    page.locator("#query-sort").select_option("latency")
    figures = page.locator(".query-row:not([hidden]) .row-figure")
    expect(figures).to_have_text(["320\u202fd", "–", "–"])
    assert figures.first.get_attribute("title") == "95 %: 330\u202fd"
    page.locator("#query-sort").select_option("state")
    expect(figures).to_have_text(["–", "–", "–"])
    page.locator(".query-row", has_text="unknown").click()
    expect(page.locator("#facts")).to_contain_text("latency –")
    expect(page.locator("#facts")).to_contain_text("cost –")
    page.locator("#query-sort").select_option("newest")


def test_modules_of_the_page(page: Page):
    """Modules of the page: choice of chart, number formats, row buffer, large integers."""
    page.goto("/")
    columns = [{"name": "window_end", "type": "TIMESTAMP"}, {"name": "pack", "type": "INT"}, {"name": "total", "type": "DOUBLE"}]
    choose = (
        "async ([columns, sql]) => { const m = await import('/page/js/shape.js');"
        " const c = m.choose(m.rolesOf(columns, sql)); return [c.kind, c.by, c.values]; }"
    )
    by_pack = "SELECT * FROM TUMBLE(s, '1 s') GROUP BY pack HAVING total > 1"
    assert page.evaluate(choose, [columns, by_pack]) == ["line", [1], [2]]
    assert page.evaluate(choose, [columns, ""]) == ["line", [], [1, 2]]
    assert page.evaluate(choose, [columns[1:], by_pack]) == ["bars", [1 - 1], [1]]
    assert page.evaluate(choose, [columns[1:2], ""]) == ["table", [], [0]]
    formats = (
        "async () => { const f = await import('/page/js/format.js'); return [f.count(1234567), f.seconds(0.25), f.time('')]; }"
    )
    assert page.evaluate(formats) == ["1\u202f234\u202f567", "250\u202fms", "–"]
    ring = (
        "async () => { const { Rows } = await import('/page/js/rows.js'); const r = new Rows(3);"
        " r.push([[1], [2]]); r.push([[3], [4]]); return [[...r].flat(), r.newest(2).flat(), r.added]; }"
    )
    assert page.evaluate(ring) == [[2, 3, 4], [4, 3], 4]
    large = (
        "async () => { const { parse } = await import('/page/js/json.js'); const { cell } = await import('/page/js/table.js');"
        " const found = parse('[9007199254740993, -9223372036854775808, 1.5, 1e300, \"12345678901234567890\"]');"
        " return found.map((value) => cell(value, 'BIGINT')[1] || cell(value, 'STRING')[0]); }"
    )
    expected = ["9007199254740993", "-9223372036854775808", "1.5", "1e+300", "12345678901234567890"]
    assert page.evaluate(large) == expected


def test_the_page_reconnects_after_a_restart_of_the_service(page: Page, service: ServiceProcess):
    service.request("POST", "/v1/queries", {"sql": TOTALS, "name": "survivor"})
    page.goto("/#/q/survivor")
    expect(page.locator("#table tbody tr").first).to_be_visible()
    service.kill()
    expect(page.locator("#connection-text")).to_have_text("reconnecting …")
    expect(page.locator("#results-state")).to_have_text("reconnecting …")
    expect(page.locator("#lost")).to_be_visible()
    before = read_row_count(page)
    service.start()
    expect(page.locator("#connection-text")).to_have_text("running")
    expect(page.locator("#results-state")).to_have_text("live")
    expect(page.locator("#lost")).to_be_hidden()
    page.wait_for_function(
        "before => parseInt(document.getElementById('results-count').textContent.replace(/\\D/g, '')) > before", arg=before
    )


@pytest.fixture
def guarded(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    (tmp_path / "tokens").write_text(f"admin ann {TOKEN}\n")
    (tmp_path / "tokens").chmod(0o600)
    service = ServiceProcess(tmp_path / "checkpoint", "--tokens", str(tmp_path / "tokens"))
    service.start()
    yield from open_page(browser, service, request)
    service.kill()


def test_the_token_is_requested_once_and_empty_views_have_a_text(guarded: Page):
    guarded.goto("/")
    expect(guarded.locator("#token")).to_be_visible()
    guarded.locator("#token-input").fill("not the one")
    guarded.keyboard.press("Enter")
    expect(guarded.locator("#token-problem")).to_contain_text("does not accept")
    guarded.locator("#token-input").fill(TOKEN)
    guarded.keyboard.press("Enter")
    expect(guarded.locator("#token")).to_be_hidden()
    expect(guarded.get_by_text("No streams.")).to_be_visible()
    for view, title in (
        ("plan", "Nothing is shared yet"),
        ("time", "Nothing has happened yet"),
        ("new", "No streams yet"),
    ):
        guarded.goto(f"/#/{view}")
        expect(guarded.get_by_text(title)).to_be_visible()
    guarded.reload()
    expect(guarded.get_by_text("No queries yet.")).to_be_visible()
    guarded.get_by_role("button", name="Declare one").click()
    guarded.get_by_role("button", name="Declare", exact=True).click()
    expect(guarded.locator("#editor .cm-content")).to_contain_text("TUMBLE(purchases")


def test_the_number_of_partitions_is_changed(page: Page, service: ServiceProcess):
    page.goto("/")
    tile = page.locator("[data-tile=partitions]")
    expect(tile.locator(".tile-value")).to_have_text("2")
    tile.get_by_role("button", name="Change").click()
    page.locator("#rescale-number").fill("5")
    page.locator("#rescale").get_by_role("button", name="Change").click()
    expect(page.locator("#rescale")).to_be_hidden()
    expect(tile.locator(".tile-value")).to_have_text("5")
    tile.get_by_role("button", name="Change").click()
    page.locator("#rescale-auto").check()
    expect(page.locator("#rescale-number")).to_be_disabled()
    page.locator("#rescale").get_by_role("button", name="Change").click()
    expect(tile.locator(".tile-note")).to_contain_text("automatic")
    service.request("POST", "/v1/rescale", {"partitions": 2})
    expect(tile.locator(".tile-value")).to_have_text("2")
