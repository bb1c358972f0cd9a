"""A real TRL run and the real server: a hand, a rule, an approval, the kill switch, a server that dies."""

import time

from support import tiny_trl
from transformers import TrainerCallback

import entrostat
from entrostat.wire.client import Client

MOST_STEPS = 4000
HELD = (
    "select m.value as held, s.num_tokens as tokens from step_metric m join step s using (run, step) "
    "where m.name = 'intervention/scope_tokens' order by m.step"
)
SAID = {"person": "anna", "because": "a test"}


class Story(TrainerCallback):
    """Does one thing after another, each as soon as what it waits for is so; then training may end."""

    def __init__(self, *chapters):
        self.chapters = list(chapters)

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.02)  # steps of a few milliseconds would outrun any server
        while self.chapters and (self.chapters[0](state.global_step) is not False):
            self.chapters.pop(0)
        control.should_training_stop = control.should_training_stop or not self.chapters


def train(server, tmp_path, *chapters, run="r", mode="act", reward=tiny_trl.reward, **options):
    trainer = tiny_trl.trainer(tmp_path / "out", max_steps=MOST_STEPS, logging_steps=50, reward_funcs=reward)
    story = Story(is_known(server, run), *chapters)
    trainer.add_callback(story)
    entrostat.attach(
        trainer, run=run, url=server.url, directory=tmp_path / "spool", tokens=0, mode=mode,
        reference=entrostat.FrozenCopy(), **options,
    )  # fmt: skip
    trainer.train()
    assert not story.chapters, f"{len(story.chapters)} chapters were never reached in {MOST_STEPS} steps"
    return trainer


def events(server, *kinds):
    named = ", ".join(f"'{kind}'" for kind in kinds)
    statement = f"select step, kind, message from event where kind in ({named}) order by time, step"
    return Client(server.url).sql(statement)[0].to_pylist()


def is_in_force(client, name):
    """A chapter that waits until the trainer has said that ``name`` is on."""
    return lambda step: any(i["name"] == name for i in client.get("/v1/runs/r/control")["in_force"])


def is_known(server, run):
    """A chapter that waits until the server has heard of the run: its stream is opened beside the first steps."""
    return lambda step: run in {found["run"] for found in Client(server.url).get("/v1/runs")["runs"]}


def after(step):
    return lambda now: now >= step


def test_a_hand_switches_on_changes_and_stops_all_in_the_running_trainer(server, tmp_path):
    client = Client(server.url)
    path = "/v1/runs/r/interventions/scope"

    def switch_on(_step):
        client.send("PUT", path, {**SAID, "params": {"q": 0.2, "lam": 0.5}})

    def change(_step):
        client.send("PUT", path, {**SAID, "params": {"q": 0.2, "lam": 0.05}})

    def changed(_step):
        return any(i["in_force"].get("lam") == 0.05 for i in client.get("/v1/runs/r/control")["in_force"])

    def stop_all(_step):
        client.send("POST", "/v1/runs/r/stop-all", SAID)

    def nothing_on(_step):
        return not client.get("/v1/runs/r/control")["in_force"]

    train(server, tmp_path, after(3), switch_on, is_in_force(client, "scope"), change, changed, stop_all, nothing_on)

    told = events(server, "intervention_on", "intervention_changed", "intervention_off")
    assert [e["kind"] for e in told] == ["intervention_on", "intervention_changed", "intervention_off"]
    assert [e["step"] for e in told] == sorted(e["step"] for e in told)
    assert "by anna: a test" in told[0]["message"]
    held = client.sql("select step from step_metric where name = 'intervention/scope_tokens' order by step")[0]
    steps = held.column("step").to_pylist()
    assert steps == list(range(told[0]["step"], told[2]["step"]))  # it acted from the first to the last of them


def test_a_rule_acts_at_its_step_and_takes_it_back(server, tmp_path):
    client = Client(server.url)
    client.put_rule({
        "name": "schedule", "mode": "act", "when": {"step": {"from": 5}}, "max_firings": 1,
        "do": {"intervention": "entropy_bonus", "params": {"c": 0.5}}, "until": {"steps": 10},
    })  # fmt: skip

    def is_off_again(_step):
        return bool(events(server, "intervention_off"))

    train(server, tmp_path, is_in_force(client, "entropy_bonus"), is_off_again)

    told = events(server, "intervention_on", "intervention_off")
    assert [e["kind"] for e in told] == ["intervention_on", "intervention_off"]
    assert told[0]["step"] > 5
    assert "schedule" in told[0]["message"]
    assert len(events(server, "rule_fired")) == 1


def test_in_mode_advise_a_rule_proposes_and_a_person_approves(server, tmp_path):
    client = Client(server.url)
    client.put_rule({
        "name": "schedule", "mode": "act", "when": {"step": {"from": 3}},
        "do": {"intervention": "clip_higher", "params": {"eps_high": 0.3}},
    })  # fmt: skip

    def approve(_step):
        proposals = client.get("/v1/runs/r/control")["proposals"]
        if not proposals:
            return False
        assert not client.get("/v1/runs/r/control")["in_force"]
        client.send("POST", f"/v1/runs/r/proposals/{proposals[0]['proposal_id']}", {"approve": True, **SAID})
        return True

    train(server, tmp_path, approve, is_in_force(client, "clip_higher"), mode="advise")

    (told,) = events(server, "intervention_on")
    assert "by anna" in told["message"]
    assert events(server, "intervention_refused") == []


def test_a_thermostat_holds_the_entropy_of_a_real_run_up(server, tmp_path):
    client = Client(server.url)
    client.put_rule({
        "name": "thermostat", "mode": "act", "hold": {"signal": "entropy_mean", "at": 3.0, "band": 0.02},
        "with": {"intervention": "entropy_bonus", "param": "c", "min": 0.0, "max": 2.0, "gain": 5.0,
                 "max_change_per_step": 0.5},
    })  # fmt: skip

    def is_held_up(_step):
        # How many steps too late the server's word comes is a matter of the machine's pace; in the end it holds.
        steps, _ = client.sql("select entropy_mean from step order by step")
        return min(steps.column("entropy_mean").to_pylist()[-30:]) > 2.8

    train(server, tmp_path, is_in_force(client, "entropy_bonus"), after(120), is_held_up)


def graded(completions, **_):
    """Every completion another reward, so that every token has an advantage and a score."""
    return [sum(tiny_trl.WORDS.index(word) for word in text.split()) / 100 for text in completions]


def test_thresholds_of_the_whole_step_come_back_and_are_in_force(server, tmp_path):
    client = Client(server.url)

    def switch_on(_step):
        wanted = {**SAID, "params": {"q": 0.2}, "selection": "step"}
        client.send("PUT", "/v1/runs/r/interventions/scope", wanted)

    def has_threshold(_step):
        return client.get("/v1/runs/r/control")["thresholds"] is not None

    def held_for_a_while(_step):
        return client.sql(HELD)[0].num_rows >= 40

    train(
        server, tmp_path, after(2), switch_on, is_in_force(client, "scope"), has_threshold, held_for_a_while,
        reward=graded,
    )  # fmt: skip

    assert client.get("/v1/runs/r/control")["thresholds"]["values"]["scope"] > 0
    counts = client.sql(HELD)[0].to_pylist()[-20:]
    share = sum(c["held"] for c in counts) / sum(c["tokens"] for c in counts)
    assert 0.1 < share < 0.3  # each step has its own number over the threshold of the step before


def test_a_server_that_is_killed_changes_nothing_that_is_on_and_is_heard_again(server, tmp_path):
    client = Client(server.url)

    def switch_on(_step):
        client.send("PUT", "/v1/runs/r/interventions/entropy_bonus", {**SAID, "params": {"c": 0.1}})

    killed_at = []

    def kill(step):
        server.kill()
        killed_at.append(step)

    def much_later(step):
        return step >= killed_at[0] + 20

    def restart(_step):
        server.start("/healthz")

    def switch_off(_step):
        client.send("DELETE", "/v1/runs/r/interventions/entropy_bonus", SAID)

    def is_off(_step):
        return not client.get("/v1/runs/r/control")["in_force"]

    train(
        server, tmp_path, after(2), switch_on, is_in_force(client, "entropy_bonus"), kill, much_later, restart,
        switch_off, is_off,
    )  # fmt: skip

    told = events(server, "intervention_on", "intervention_off")
    assert [e["kind"] for e in told] == ["intervention_on", "intervention_off"]
    stored = client.sql("select count(*) as n, max(step) as last from step")[0].to_pylist()[0]
    assert stored["n"] == stored["last"]  # every step, the ones without a server included
