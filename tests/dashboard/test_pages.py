"""The pages in a real Chromium, over the real server: what a person at night relies on."""

import pytest
from playwright.sync_api import expect
from support.service import FakeRun, Process

pytestmark = pytest.mark.browser
ATTACK = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("data")).start("/healthz")
    first = FakeRun(made.url, "first", {"note": ATTACK})
    first.report(range(1, 41))
    first.event("warning", ATTACK, 20)
    first.profile(40, {"entropy_by_position": [0.5, 0.7], "entropy_by_position_neg": [0.6]})
    FakeRun(made.url, "second").report(range(1, 31), lambda step: 1.0)
    yield made
    made.stop()


@pytest.fixture
def page(page, dashboard):
    yield page
    outside = [url for url in page.asked if not url.startswith((dashboard.url, "data:", "blob:"))]
    assert outside == []


def points(page, card="entropy"):
    """The x values of the card's first line."""
    return page.evaluate(f"() => (document.querySelector('#card-{card} .js-plotly-plot')?.data?.[0]?.x || []).length")


def x_range(page, card="entropy"):
    return page.evaluate(f"() => document.querySelector('#card-{card} .js-plotly-plot')._fullLayout.xaxis.range")


def wait_for(page, expression):
    page.wait_for_function(expression)


def open_run(page, address="/run/first"):
    page.goto(address)
    wait_for(page, "() => document.querySelector('#card-entropy .js-plotly-plot')?.data?.[0]?.x?.length > 0")


def zoom(page, card, low, high):
    """As a drag over the chart does it: the browser's own event, which all charts then follow."""
    page.evaluate(
        f"() => Plotly.relayout(document.querySelector('#card-{card} .js-plotly-plot'),"
        f" {{'xaxis.range[0]': {low}, 'xaxis.range[1]': {high}}})"
    )


def test_runs_are_listed_searched_and_opened(page):
    page.goto("/")
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    page.fill("#runs-search", "seco")
    expect(page.locator("table.runs tbody tr")).to_have_count(1)

    page.click("table.runs a")

    expect(page.locator("h1")).to_have_text("second")


def test_charts_show_what_was_reported(page):
    open_run(page)

    assert points(page) == 40
    expect(page.locator("#card-entropy .last")).to_contain_text("nats")
    expect(page.locator("#run-status")).to_contain_text("step 40")


def test_charts_that_a_run_cannot_have_stand_aside_with_the_reason_until_a_value_comes(page, server):
    run = FakeRun(server.url, "part-of-it")
    run.event("absent", "absent signals", 1, {"no old log-probs": ["approx_kl"]})
    run.report(range(1, 5))
    open_run(page, "/run/part-of-it")

    expect(page.locator("#card-kl")).to_be_hidden()
    expect(page.locator("#card-entropy")).to_be_visible()
    page.get_by_text("Charts without a value in this run").click()
    expect(page.locator("#run-absent")).to_contain_text("Approximate KL to the sampling policy")
    expect(page.locator("#run-absent")).to_contain_text("no old log-probs")
    expect(page.locator("#run-absent")).not_to_contain_text("pass@k")

    run.report_one(5, "approx_kl", 0.25)

    expect(page.locator("#card-kl .last")).to_contain_text("0.25")
    expect(page.locator("#card-kl")).to_be_visible()
    assert page.locator("#card-kl .main-svg").first.bounding_box()["width"] > 200


def test_statements_about_the_run_are_told_and_refusals_are_their_reasons(page):
    open_run(page)

    expect(page.locator("#run-findings > div")).to_have_count(3)
    expect(page.locator("#run-findings")).to_contain_text("Stage rising")
    expect(page.locator("#run-findings")).to_contain_text("0.1 nats at step 116 (116 to 116), exponential trend")


def test_the_latest_steps_entropy_is_drawn_over_positions_by_sign(page):
    open_run(page)

    wait_for(page, "() => document.querySelector('#card-positions .js-plotly-plot')?.data?.length === 2")
    middle = page.evaluate("() => document.querySelector('#card-positions .js-plotly-plot').data[1].x[0]")
    assert middle == 0.025


def test_new_points_arrive_without_redrawing_and_the_zoom_and_scroll_stay(page, server):
    live = FakeRun(server.url, "growing")
    live.report(range(1, 21))
    open_run(page, "/run/growing")
    zoom(page, "entropy", 5, 15)
    wait_for(page, "() => location.search.includes('from=5')")
    wait_for(page, "() => document.querySelector('#card-pass .js-plotly-plot')._fullLayout.xaxis.range[1] == 15")
    page.evaluate("() => { document.querySelector('#card-entropy .js-plotly-plot').markedByTest = true; }")
    expect(page.locator("#card-kl")).to_be_hidden()  # the run has no such values: the page has its length
    page.set_viewport_size({"width": 1400, "height": 500})
    page.evaluate("() => window.scrollTo(0, 300)")

    live.report(range(21, 31))
    expect(page.locator("#run-status")).to_contain_text("step 30")

    assert page.evaluate("() => document.querySelector('#card-entropy .js-plotly-plot').markedByTest === true")
    assert x_range(page) == [5, 15]
    assert page.evaluate("() => window.scrollY") == 300
    page.click("#run-reset")
    wait_for(page, "() => document.querySelector('#card-entropy .js-plotly-plot').data[0].x.length == 30")


def test_a_live_run_gains_points_on_the_same_chart(page, server):
    live = FakeRun(server.url, "live")
    live.report(range(1, 6))
    open_run(page, "/run/live")
    page.evaluate("() => { document.querySelector('#card-entropy .js-plotly-plot').markedByTest = true; }")

    live.report(range(6, 11))

    wait_for(page, "() => document.querySelector('#card-entropy .js-plotly-plot').data[0].x.length == 10")
    assert page.evaluate("() => document.querySelector('#card-entropy .js-plotly-plot').markedByTest === true")


def test_an_address_restores_the_view(page):
    open_run(page, "/run/first?x=step&from=10&to=20&smooth=0.5&log=1")

    assert x_range(page) == [10, 20]
    assert (
        page.evaluate("() => document.querySelector('#card-entropy .js-plotly-plot')._fullLayout.yaxis.type") == "log"
    )


def test_runs_are_compared_over_each_other(page):
    page.goto("/compare?runs=first,second&signals=entropy_mean")
    wait_for(page, "() => document.querySelectorAll('#compare-charts .js-plotly-plot .legendtext').length >= 2")

    names = page.locator("#compare-charts .legendtext").all_text_contents()

    assert names == ["first", "second"]


def test_a_statement_runs_from_the_keyboard_and_an_error_is_in_the_servers_words(page):
    page.goto("/sql")
    page.fill("#sql-text", "select count(*) as n from step where run = 'first'")
    page.press("#sql-text", "Control+Enter")
    expect(page.locator("table.sql td")).to_have_text("40")

    page.fill("#sql-text", "drop table run")
    page.click("#sql-run")

    expect(page.locator(".banner")).to_contain_text("SELECT")


def test_a_result_that_is_cut_says_so_on_the_page_and_beside_the_csv(page):
    page.goto("/sql")
    page.fill("#sql-text", "select i, [i] as l from range(10001) t(i)")
    page.press("#sql-text", "Control+Enter")
    expect(page.locator("#sql-note")).to_contain_text("10000 rows: cut here, there are more")

    page.fill("#sql-text", "select i, [i] as l from range(1000001) t(i)")
    with page.expect_download() as download:
        page.click("#sql-csv")
    expect(page.locator("#sql-note")).to_contain_text("rows: cut here, there are more, without l (lists)")
    assert download.value.suggested_filename == "entrostat.csv"


def test_the_views_and_their_columns_are_at_hand(page):
    page.goto("/sql")
    page.click("#sql-schema summary >> text=token")

    expect(page.locator("#sql-schema")).to_contain_text("top_logps")


def test_markup_in_tags_and_events_is_only_text(page):
    page.goto("/")
    expect(page.locator(".tag").first).to_contain_text("<img")
    open_run(page)
    page.click("text=Settings, versions, events")
    expect(page.locator("#run-facts")).to_contain_text("<img")

    assert page.locator("img[src=x]").count() == 0


def test_a_server_that_goes_away_is_said_and_comes_back_by_itself(browser, tmp_path):
    server = Process("entrostat.server", "--data", tmp_path / "data").start("/healthz")
    FakeRun(server.url, "mine").report(range(1, 4))
    dashboard = Process("entrostat.dashboard", "--server-url", server.url).start()
    context = browser.new_context(base_url=dashboard.url)
    page = context.new_page()
    try:
        open_run(page, "/run/mine")
        server.stop()
        expect(page.locator(".banner")).to_contain_text("entrostat up")
        assert points(page) == 3

        server.start("/healthz")

        expect(page.locator(".banner")).to_have_count(0)
    finally:
        context.close()
        dashboard.stop()
        server.stop()


def test_before_the_first_run_the_page_says_how_to_attach(browser, tmp_path):
    server = Process("entrostat.server", "--data", tmp_path / "data").start("/healthz")
    dashboard = Process("entrostat.dashboard", "--server-url", server.url).start()
    context = browser.new_context(base_url=dashboard.url)
    page = context.new_page()
    try:
        page.goto("/")
        expect(page.locator("#runs-table")).to_contain_text("entrostat.attach(trainer)")
    finally:
        context.close()
        dashboard.stop()
        server.stop()
