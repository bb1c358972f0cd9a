"""Names, tags, notes, messages, rules, token texts, addresses with markup, on every page: shown as text, never run."""

from datetime import UTC, datetime
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import expect
from support.patience import until
from support.service import FakeRun, Process

from entrostat.wire.messages import ActiveIntervention, Permissions
from entrostat.wire.tables import TOKEN

pytestmark = pytest.mark.browser
LINK = "<a href='https://evil.example'>click</a>"  # Plotly makes a link of it, where it is not told that it is text
OWN = "document.title='owned'"
IMG = f'<img src=x onerror="{OWN}">'
ATTACKS = [
    IMG, f"<script>{OWN}</script>", f"<svg onload={OWN}>", f'"><iframe srcdoc="<script>parent.{OWN}</script>">',
    f"[click](javascript:{OWN})", f"<a href='javascript:{OWN}'>here</a>", f"{{{{constructor.constructor(`{OWN}`)()}}}}",
]  # fmt: skip
ATTACK = " ".join(ATTACKS)
RULE = {
    "name": "hostile", "meaning": ATTACK[:1900], "evidence": ATTACK[:1900],
    "when": {"signal": "entropy_mean", "below": 100, "for_steps": 1}, "do": {"intervention": "kl_cov"},
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("data")).start("/healthz")
    run = FakeRun(
        made.url, "hostile", {"note": ATTACK, IMG: "x"}, Permissions(mode="advise", allow=["kl_cov", "scope"])
    )
    run.client.put_rule(RULE)
    run.client.send("PATCH", "/v1/runs/hostile", {"notes": ATTACK})
    run.report(range(1, 11))
    run.report_one(10, f"trainer/{IMG}", 1.0)
    run.report_one(10, f"trainer/{LINK}", 1.0)
    row = {"step": 1, "seq": 0, "token_id": 5, "logp": -0.5, "entropy": 0.5, "reason": ATTACK[:900], "prob": 1.0}
    texts = [row | {"pos": place, "text": text} for place, text in enumerate(ATTACKS)]
    run._post({"token": pa.Table.from_pylist(texts, schema=TOKEN)})
    for kind in ("warning", "run_note", "dropped", "resumed"):
        run.event(kind, ATTACK, 5, {ATTACK: ATTACK})
    run.event("absent", ATTACK, 1, {ATTACK: ["approx_kl"]})
    told = {"name": IMG, "params": {IMG: IMG}, "by": f"person:{IMG}", "because": ATTACK, "reason": ATTACK}
    run.event("intervention_on", ATTACK, 3, told)
    run.event("intervention_refused", ATTACK, 4, told | {"name": LINK})
    wanted = ActiveIntervention(name="scope", because=ATTACK[:1900], by=f"person:{IMG}"[:120])
    run.client.switch_on("hostile", wanted.name, wanted.because, ATTACK[:100])
    until(lambda: run.client.desired("hostile").proposals)
    yield made
    made.stop()


@pytest.fixture
def page(page):
    page.dialogs = []
    page.on("dialog", lambda one: (page.dialogs.append(one.message), one.accept()))
    return page


def harmless(page):
    """Nothing ran, nothing of it became an element, and the page's own policy had nothing to complain of."""
    assert page.title() == "entrostat"
    assert page.dialogs == []
    for element in ("img[src=x]", "main iframe", "main script", "svg[onload]", "[onerror]", "a[href^='javascript']"):
        assert page.locator(element).count() == 0, element
    links = (
        "() => [...document.querySelectorAll('a')].map((a) => a.outerHTML).filter((a) => /href=.https:.*evil/.test(a))"
    )
    assert page.evaluate(links) == []
    assert [line for line in page.errors if "Content Security Policy" in line] == []


def test_lists_and_a_runs_pages_show_it_as_text(page):
    page.goto("/")
    expect(page.locator(".tag").first).to_contain_text("<img")
    harmless(page)

    page.goto("/run/hostile")
    page.wait_for_function("() => document.querySelector('#card-entropy .js-plotly-plot')?.data?.[0]?.x?.length > 0")
    for title in ("Settings, versions, events", "What the trainer logs itself", "Charts without a value in this run"):
        page.get_by_text(title).click()
    expect(page.locator("#run-facts")).to_contain_text("<script>")
    expect(page.locator("#run-own")).to_contain_text("<img")
    page.wait_for_function("() => document.querySelector('#card-timeline .js-plotly-plot')?.data?.length > 0")
    expect(page.locator("#card-timeline .ytick text", has_text="<img").first).to_be_visible()
    harmless(page)

    page.goto("/run/hostile/control")
    expect(page.locator("#control-lines")).to_contain_text("<script>")
    expect(page.locator("#control-proposals")).to_contain_text("kl_cov")
    harmless(page)


def test_rules_comparisons_and_tables_show_it_as_text(page):
    page.goto("/rules?run=hostile")
    page.click("button:has-text('edit')")
    page.click("#rules-replay")
    expect(page.locator("#rules-replayed")).to_contain_text("hostile")
    harmless(page)

    page.goto(f"/compare?runs=hostile&signals={quote(f'trainer/{IMG}')},entropy_mean")
    page.wait_for_function("() => document.querySelectorAll('#compare-charts .js-plotly-plot').length === 2")
    expect(page.locator("#compare-charts h3").first).to_contain_text("<img")
    harmless(page)

    page.goto("/sql")
    page.fill("#sql-text", f'select text, step, 1 as "{IMG.replace(chr(34), chr(34) * 2)}" from token')
    page.click("#sql-run")
    expect(page.locator("table.sql tbody tr")).to_have_count(len(ATTACKS))
    expect(page.locator("table.sql")).to_contain_text(ATTACKS[1])
    page.click("summary:has-text('chart over step')")
    harmless(page)


@pytest.mark.parametrize(
    "path",
    [
        f"/run/{quote(IMG, safe='')}", f"/run/{quote(IMG, safe='')}/control", f"/compare?runs={quote(IMG)}",
        f"/rules?run={quote(IMG)}", f"/{quote(ATTACK, safe='')}", "/run/..%2f..%2fetc%2fpasswd",
        f"/run/hostile?x={quote(IMG)}&smooth={quote(IMG)}&from={quote(IMG)}&to=1", "/run/x%00y",
    ],
)  # fmt: skip
def test_a_link_that_somebody_made_runs_nothing(page, path):
    page.goto(path)
    page.wait_for_selector("main > div")
    page.wait_for_load_state("networkidle")
    harmless(page)


def test_what_was_made_up_here_is_what_the_server_holds(server):
    from entrostat.wire.client import Client

    with Client(server.url) as client:
        assert client.run("hostile")["notes"] == ATTACK
        assert datetime.fromisoformat(client.run("hostile")["created"]) <= datetime.now(UTC)
