"""Spans follow from what the trainer said; figures show them where the steps are."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from entrostat.dashboard.figures.axis import placed
from entrostat.dashboard.figures.lines import View, panel_figure
from entrostat.dashboard.figures.timeline import timeline_figure, timeline_height
from entrostat.dashboard.spans import in_force, since, spans_of
from entrostat.dashboard.words import Panel

ATTACK = "<img src=x onerror=alert(1)>"
PANEL = Panel("entropy", "Entropy", ("entropy_mean",), "entropy_mean")


def event(kind, step, name="kl_cov", by="person:anna", because="why", params=None, **more):
    detail = {"name": name, "by": by, "because": because, "params": params or {}, **more}
    return {"kind": f"intervention_{kind}", "step": step, "message": f"{name} {kind}", "detail": detail}


def curve(steps=range(1, 11), tokens_a_step=100.0):
    steps = list(steps)
    return {"run": "r", "name": "entropy_mean", "step": steps, "time": [60.0 * s for s in steps], "low": [0] * 10,
            "value": [1.0] * len(steps), "high": [2] * 10, "se": None, "bucket_steps": 1}  # fmt: skip


def test_from_on_to_off_is_a_span():
    (span,) = spans_of([event("on", 3, params={"k": 0.01}), event("off", 7, why="it is not asked for any more")])

    assert (span.name, span.start, span.end, span.params) == ("kl_cov", 3, 7, {"k": 0.01})
    assert span.ended == "it is not asked for any more"


def test_a_change_ends_one_span_and_begins_the_next_without_a_gap():
    events = [event("on", 3, params={"k": 0.01}), event("changed", 5, params={"k": 0.02}, by="rule:guard")]
    first, second = spans_of(events)

    assert (first.start, first.end, second.start, second.end) == (3, 5, 5, None)
    assert (first.is_of_rule, second.is_of_rule) == (False, True)
    assert since([first, second], "kl_cov") == 3


def test_switched_off_and_on_again_is_in_force_since_the_second_time():
    spans = spans_of([event("on", 3), event("off", 5, why="enough"), event("on", 5)])

    assert since(spans, "kl_cov") == 5


def test_what_was_refused_is_no_span():
    assert spans_of([event("refused", 3, reason="not allowed")]) == []


def test_a_run_that_ended_before_its_off_event_leaves_the_span_open():
    spans = spans_of([event("on", 3), event("on", 4, name="scope"), event("off", 6, name="scope")])

    assert list(in_force(spans)) == ["kl_cov"]


def test_events_that_say_nothing_usable_are_passed_over():
    assert spans_of([{"kind": "intervention_on", "step": 3, "message": "", "detail": None}]) == []
    assert spans_of([{**event("on", 3), "step": None}]) == []


KINDS = st.sampled_from(["on", "changed", "off", "refused"])


@given(st.lists(st.tuples(st.integers(0, 30), KINDS, st.sampled_from(["a", "b"])), max_size=30))
def test_spans_of_one_intervention_never_overlap_and_only_the_last_is_open(told):
    events = [event(kind, step, name) for step, kind, name in sorted(told, key=lambda t: t[0])]
    for name in ("a", "b"):
        own = [s for s in spans_of(events) if s.name == name]

        assert all(one.end is not None and one.end <= two.start for one, two in itertools.pairwise(own))
        assert all(s.end is None or s.end > s.start for s in own)


def test_the_timeline_has_a_row_for_each_and_a_colour_for_each_who():
    spans = spans_of([event("on", 2), event("on", 4, name="scope", by="rule:guard"), event("off", 6, name="scope")])
    figure = timeline_figure(spans, [], View(), lambda step: step, (1, 10))

    person, rule, extent = figure.data
    assert (list(person.base), list(person.x), list(person.y)) == ([2], [9], ["kl_cov"])
    assert (list(rule.base), list(rule.x), list(rule.y)) == ([4], [2], ["scope"])
    assert list(extent.x) == [1, 10]
    assert person.marker.color != rule.marker.color
    assert timeline_height(spans) > timeline_height(spans[:1])


def test_a_refusal_is_a_cross_in_a_row_of_its_own():
    refusal = event("refused", 5, name="casp", reason="no candidates")
    figure = timeline_figure([], [refusal], View(), lambda step: step, (1, 10))

    assert (list(figure.data[0].x), list(figure.data[0].y)) == ([5], ["casp"])


def test_reasons_and_names_are_only_text():
    spans = spans_of([event("on", 2, because=ATTACK, by=f"person:{ATTACK}", params={ATTACK: ATTACK})])
    refusal = {**event("refused", 3), "message": ATTACK}
    drawn = [
        timeline_figure(spans, [refusal], View(), lambda step: step, (1, 5)),
        panel_figure(PANEL, [curve()], View(), [refusal], spans=spans),
    ]
    for figure in drawn:
        words = json.loads(figure.to_json())
        assert all("<img" not in t for trace in words["data"] for t in trace.get("text", []))


def test_a_signals_chart_is_shaded_where_something_was_in_force():
    spans = spans_of([event("on", 3), event("changed", 5, params={"k": 0.1}), event("off", 7)])
    figure = panel_figure(PANEL, [curve()], View(), spans=spans)

    (shade,) = figure.layout.shapes  # a change of parameters is no gap
    assert (shade.x0, shade.x1) == (3, 7)
    assert list(figure.data[-1].x) == [3]
    assert "kl_cov, from step 3 to step 7" in figure.data[-1].text[0]


def test_what_a_person_took_over_from_a_rule_is_another_shade():
    spans = spans_of([event("on", 3, by="rule:guard"), event("changed", 5), event("off", 7)])
    rule, person = panel_figure(PANEL, [curve()], View(), spans=spans).layout.shapes

    assert ((rule.x0, rule.x1), (person.x0, person.x1)) == ((3, 5), (5, 7))
    assert rule.fillcolor != person.fillcolor


def test_spans_and_marks_stand_where_their_steps_are_on_any_x_axis():
    spans = spans_of([event("on", 3), event("off", 7)])
    in_time = panel_figure(PANEL, [curve()], View(x="time"), spans=spans).layout.shapes[0]
    tokens = {step: 100.0 * step for step in range(1, 11)}
    in_tokens = panel_figure(PANEL, [curve()], View(x="tokens"), tokens=tokens, spans=spans).layout.shapes[0]

    assert (in_time.x0, in_time.x1) == (2, 6)  # minutes since the first step
    assert (in_tokens.x0, in_tokens.x1) == (300, 700)


def test_a_step_that_was_thinned_away_stands_between_its_neighbours():
    place = placed([curve(steps=[1, 5, 9])], "time")

    assert place(3) == 2
    assert (place(0), place(99)) == (0, 8)
    assert placed([], "time")(3) is None


def test_a_window_is_the_timelines_range_too():
    figure = timeline_figure(spans_of([event("on", 2)]), [], View(window=(3, 9)), lambda step: step, (1, 10))

    assert figure.layout.xaxis.range == (3, 9)
