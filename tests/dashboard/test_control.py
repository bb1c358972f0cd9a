"""The control page in a real Chromium, over the real server: what a person presses is what the trainer is asked."""

import pytest
from playwright.sync_api import expect
from support.patience import until
from support.service import FakeRun, Process

from entrostat.wire.messages import Permissions

pytestmark = pytest.mark.browser
ATTACK = "<img src=x onerror=\"document.title='owned'\">"
MAY = Permissions(mode="advise", allow=["kl_cov", "scope"], bounds={"kl_cov.k": (0.001, 0.1)})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process("entrostat.server", "--data", tmp_path_factory.mktemp("data")).start("/healthz")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def page(new_page):
    """One person's: who they are is asked once."""
    made = new_page()
    yield made
    assert made.title() == "entrostat"  # no name and no reason ran as a script


def run_of(server, name, steps=range(1, 11)):
    run = FakeRun(server.url, name, permissions=MAY)
    run.report(steps)
    return run


def acknowledge(run, kind, wanted, step, **more):
    """As the controller in the trainer says it."""
    detail = wanted.model_dump(mode="json") | {"in_force": wanted.params} | more
    run.event(f"intervention_{kind}", f"{wanted.name} {kind}", step, detail)


def desired(run, name, is_as_hoped):
    """The desired state, once it is as hoped."""
    until(lambda: is_as_hoped(run.client.desired(name)))
    return run.client.desired(name)


def open_control(page, name, person="anna"):
    page.goto(f"/run/{name}/control")
    expect(page.locator("#control-lines h2")).to_be_visible()
    page.fill("#control-person", person)


def row(page, name):
    return page.locator("#control-lines tbody tr", has_text=name)


def field(page, param):
    return page.locator(f"#form-fields .field:has(.name:text-is('{param}'))")


def test_switched_on_from_the_form_then_acknowledged_changed_and_off(page, server):
    run = run_of(server, "form")
    open_control(page, "form")
    page.click("#form-name")
    page.locator(".dash-dropdown-option", has_text="kl_cov").first.click()
    field(page, "k").locator("input").fill("2")
    expect(field(page, "k").locator(".field-trouble")).to_have_text("k may be 0 < x <= 1, not 2")

    page.fill("#control-because", ATTACK)
    page.click("#form-submit")
    expect(page.locator("#form-answer")).to_contain_text("0 < x <= 1")
    assert run.client.desired("form").version == 0

    field(page, "k").locator("input").fill("0.5")  # in the catalogue's bounds, out of the user's
    page.click("#form-submit")
    expect(page.locator("#form-answer .banner")).to_contain_text("outside what the user of this run allows")
    assert run.client.desired("form").version == 0

    field(page, "k").locator("input").fill("0.01")
    page.click("#form-submit")
    (wanted,) = desired(run, "form", lambda state: state.interventions).interventions
    assert (wanted.name, wanted.params, wanted.by, wanted.because) == ("kl_cov", {"k": 0.01}, "person:anna", ATTACK)
    expect(row(page, "kl_cov")).to_contain_text("not acknowledged yet")

    acknowledge(run, "on", wanted, 11)
    expect(row(page, "kl_cov").locator("td").nth(1)).to_have_text("on")
    expect(page.locator("#control-timeline-card")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0

    row(page, "kl_cov").get_by_text("change").click()
    expect(field(page, "k").locator("input")).to_have_value("0.01")
    row(page, "kl_cov").get_by_text("switch off").click()
    desired(run, "form", lambda state: not state.interventions)
    expect(row(page, "kl_cov")).to_contain_text("asked to be off, still in force")


def test_a_proposal_is_shown_with_its_values_and_approved_by_a_person(page, server):
    run = run_of(server, "proposal", range(1, 3))
    run.client.put_rule(
        {"name": "low", "runs": {"name": "proposal"}, "when": {"signal": "entropy_mean", "below": 0.9},
         "do": {"intervention": "scope", "params": {"q": 0.05}}}
    )  # fmt: skip
    run.report(range(3, 12))
    open_control(page, "proposal", "bo")
    card = page.locator("#control-proposals .card")
    expect(card).to_contain_text("entropy mean 0.8")

    card.get_by_text("approve", exact=True).click()

    (wanted,) = desired(run, "proposal", lambda state: state.interventions).interventions
    assert (wanted.name, wanted.params, wanted.by) == ("scope", {"q": 0.05}, "person:bo")
    expect(card).to_have_count(0)


def test_stop_all_is_one_click_and_a_confirmation_and_is_undone_by_arming(page, server):
    run = run_of(server, "stop")
    body = {"params": {}, "because": "a test", "person": "cy"}
    run.client.send("PUT", "/v1/runs/stop/interventions/kl_cov", body)
    open_control(page, "stop")
    expect(row(page, "kl_cov")).to_be_visible()

    page.once("dialog", lambda dialog: dialog.dismiss())
    with page.expect_event("dialog"):
        page.click("#control-stop")
    page.once("dialog", lambda dialog: dialog.accept())
    with page.expect_event("dialog"):
        page.click("#control-stop")
    expect(page.locator("#control-answer")).to_contain_text("asked to be off")
    state = run.client.desired("stop")
    assert (state.is_armed, state.interventions, state.version) == (False, [], 2)  # the first time changed nothing
    expect(page.locator("#control-status")).to_contain_text("stopped")
    expect(page.locator("#control-stop")).to_be_hidden()

    page.click("#control-arm")
    desired(run, "stop", lambda state: state.is_armed)
    expect(page.locator("#control-status")).to_contain_text("armed")
    page.reload()
    expect(page.locator("#control-person")).to_have_value("anna")  # remembered by the browser


def test_the_run_page_has_a_timeline_over_its_charts_once_something_was_in_force(page, server):
    run = run_of(server, "bands")
    page.goto("/run/bands")
    page.wait_for_function("() => document.querySelector('#card-entropy .js-plotly-plot')?.data?.[0]?.x?.length > 0")
    assert page.locator("#card-timeline").is_hidden()

    wanted = {"params": {"k": 0.01}, "because": "a test", "person": "cy"}
    run.client.send("PUT", "/v1/runs/bands/interventions/kl_cov", wanted)
    (asked,) = run.client.desired("bands").interventions
    acknowledge(run, "on", asked, 3)
    acknowledge(run, "off", asked, 7, why="it is not asked for any more")

    expect(page.locator("#card-timeline")).to_be_visible()
    band = "() => document.querySelector('#card-timeline .js-plotly-plot').data[0]"
    page.wait_for_function(f"() => {{ const d = ({band})(); return d.base[0] === 3 && d.x[0] === 4; }}")
    assert page.evaluate(band)["y"] == ["kl_cov"]
    shade = "() => document.querySelector('#card-entropy .js-plotly-plot').layout.shapes?.[0]?.x1 === 7"
    page.wait_for_function(shade)


def test_rules_are_checked_while_typed_replayed_and_saved(page, server):
    run = run_of(server, "rules", range(1, 41))
    page.goto("/rules?run=rules")
    page.fill("#rules-text", "- name: low\n  when: {signal: entropy_meen, below: 0.7}\n")
    expect(page.locator("#rules-check")).to_contain_text("did you mean entropy_mean")

    page.fill("#rules-text", "- name: low-again\n  when: {signal: entropy_mean, below: 0.7}\n")
    expect(page.locator("#rules-fine")).to_contain_text("low-again (advise)")
    page.click("#rules-replay")
    expect(page.locator(".replayed tbody tr").first).to_contain_text("low-again")
    mark = "() => document.querySelector('#rules-replayed .js-plotly-plot')?.layout?.shapes?.[0]?.x0"
    page.wait_for_function(mark)
    assert page.evaluate(mark) == 18  # the first step with exp(-step / 50) < 0.7

    page.click("#rules-save")
    expect(page.locator("#rules-held")).to_contain_text("low-again")
    assert "low-again" in {held["name"] for held in run.client.rules()}
