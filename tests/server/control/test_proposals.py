"""What a rule proposes, and what a person makes of it. The rule's part is done on the store, behind the real routes."""

import pytest
from fastapi.testclient import TestClient

from entrostat.server.app import build_app
from entrostat.server.settings import Settings
from entrostat.storage.store import Store
from entrostat.wire import intent
from entrostat.wire.messages import ActiveIntervention, Permissions, Proposal, StreamOpen

ID = f"{7:032x}"
ALLOW = ["scope", "kl_cov", "clip_cov"]


@pytest.fixture
def store():
    with Store("duckdb::memory:", linger_s=0.0) as opened:
        opening = StreamOpen(
            run_id="r", session_id=f"{1:032x}", started="2026-01-01T00:00:00Z",
            permissions=Permissions(mode="advise", allow=ALLOW, bounds={"kl_cov.beta": (0.0, 2.0)}),
        )  # fmt: skip
        opened.open_stream(f"{1:032x}", opening)
        yield opened


@pytest.fixture
def http(store):
    return TestClient(build_app(Settings(data="/nonexistent"), store), base_url="http://127.0.0.1")


def propose(store, name="kl_cov", **params):
    wanted = ActiveIntervention(name=name, params=params, because="the tail is 3 sd out", by="rule:tail-guard")
    proposal = Proposal(proposal_id=ID, intervention=wanted, step=4)
    store.change_desired("r", lambda state: intent.proposed(state, proposal))


def decide(http, **body):
    return http.post(f"/v1/runs/r/proposals/{ID}", json={"person": "anna"} | body)


def test_an_approved_proposal_is_on_in_the_persons_name(store, http):
    propose(store, beta=0.5)
    assert http.get("/v1/runs/r/control").json()["proposals"][0]["proposal_id"] == ID

    state = decide(http, approve=True).json()
    assert state["proposals"] == []
    assert state["interventions"][0] | {"until_step": None} == {
        "name": "kl_cov", "params": {"beta": 0.5}, "by": "person:anna", "selection": "batch", "until_step": None,
        "because": "the tail is 3 sd out (proposed by tail-guard)",
    }  # fmt: skip
    event = store.events("r")[-1]
    assert (event["kind"], event["detail"]["action"], event["detail"]["by"]) == ("asked", "approve", "person:anna")
    assert decide(http, approve=True).status_code == 404


def test_it_may_be_approved_with_other_parameters_and_a_reason(store, http):
    propose(store, beta=0.5)

    on = decide(http, approve=True, params={"beta": 1.5}, because="stronger").json()["interventions"][0]
    assert on["params"] == {"beta": 1.5}
    assert on["because"] == "stronger: the tail is 3 sd out (proposed by tail-guard)"


@pytest.mark.parametrize(
    ("proposed", "body", "status", "said"),
    [
        (("kl_cov", {"beta": 0.5}), {"params": {"beta": 3.0}}, 422, "kl_cov.beta=3 is outside"),
        (("kl_cov", {"beta": 0.5}), {"params": {"beat": 1.0}}, 422, "kl_cov.beat"),
        (("kl_cov", {"beta": 1e9}), {}, 422, "kl_cov.beta"),
        (("casp", {}), {}, 403, "does not allow casp"),
    ],
)
def test_what_may_not_be_stays_proposed(store, http, proposed, body, status, said):
    name, params = proposed
    propose(store, name, **params)

    answer = decide(http, approve=True, **body)
    assert (answer.status_code, said in answer.json()["message"]) == (status, True)
    assert [p.proposal_id for p in store.desired("r").proposals] == [ID]


def test_an_approval_that_is_excluded_by_what_is_on_is_refused(store, http):
    http.put("/v1/runs/r/interventions/clip_cov", json={"because": "b", "person": "anna"})
    propose(store)

    assert decide(http, approve=True).status_code == 409
    assert decide(http, approve=False).status_code == 200


def test_a_dismissed_proposal_is_gone_and_told(store, http):
    propose(store)

    state = decide(http, approve=False, because="not before step 100").json()
    assert (state["proposals"], state["interventions"]) == ([], [])
    assert store.events("r")[-1]["message"] == (
        "anna dismissed kl_cov: not before step 100 (dismissed: the tail is 3 sd out)"
    )
