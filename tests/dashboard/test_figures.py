"""Figures are functions from rows: what a person sees follows from what the server said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.dashboard.figures.heat import histogram_figure
from entrostat.dashboard.figures.lines import View, panel_figure, signal_figure, smoothed, x_of
from entrostat.dashboard.figures.positions import positions_figure
from entrostat.dashboard.words import PANELS, RUN_PAGE_SIGNALS, Panel, findings, meaning, number
from entrostat.wire.signals import BY_NAME, SIGNALS

PANEL = Panel("covariance", "Covariance", ("cov_mean", "d_entropy"), "cov_mean", negated=("d_entropy",))


def curve(name, value, step=(1, 2, 3), bucket_steps=1, run="r"):
    low, high = [None if v is None else v - 1 for v in value], [None if v is None else v + 1 for v in value]
    time = [100.0 + 60 * s for s in step]
    return {"run": run, "name": name, "step": list(step), "time": time, "value": list(value), "low": low, "high": high,
            "se": None, "bucket_steps": bucket_steps}  # fmt: skip


def lines(figure):
    return [t for t in figure.data if t.mode in ("lines", "lines+markers") and t.showlegend is not False]


def test_a_negated_signal_is_drawn_with_its_sign_turned():
    figure = panel_figure(PANEL, [curve("cov_mean", [1, 2, 3]), curve("d_entropy", [-0.1, -0.2, None])], View())

    assert [list(t.y) for t in lines(figure)] == [[1, 2, 3], [0.1, 0.2, None]]


def test_a_thinned_curve_shows_the_envelope_so_that_no_spike_is_hidden():
    figure = panel_figure(PANEL, [curve("cov_mean", [1.0, 2.0, 3.0], bucket_steps=5)], View())

    assert [list(t.y) for t in figure.data[:2]] == [[0, 1, 2], [2, 3, 4]]
    assert figure.data[1].fill == "tonexty"


def test_an_envelope_turned_by_its_sign_keeps_low_below_high():
    figure = panel_figure(PANEL, [curve("d_entropy", [5.0], step=(1,), bucket_steps=5)], View())

    assert (figure.data[0].y[0], figure.data[1].y[0]) == (-6, -4)


def test_smoothing_keeps_the_raw_line_faint_beneath():
    figure = panel_figure(PANEL, [curve("cov_mean", [0.0, 1.0, 0.0])], View(smoothing=0.5))

    raw, smooth = figure.data[0], figure.data[1]
    assert list(raw.y) == [0, 1, 0]
    assert "rgba" in raw.line.color
    assert list(smooth.y) == pytest.approx([0.0, 2 / 3, 2 / 7])


@given(value=st.floats(-1e6, 1e6), weight=st.floats(0, 0.98), n=st.integers(1, 20))
def test_a_constant_is_smoothed_to_itself_from_its_first_point(value, weight, n):
    assert smoothed([value] * n, weight) == pytest.approx([value] * n)


def test_gaps_stay_gaps_under_smoothing():
    assert smoothed([1.0, None, 1.0], 0.9) == [pytest.approx(1.0), None, pytest.approx(1.0)]


def test_x_can_be_minutes_or_tokens():
    seen = curve("cov_mean", [1, 2, 3])

    assert x_of(seen, "time") == [0, 1, 2]
    assert x_of(seen, "tokens", {1: 10, 2: 20, 3: 30}) == [10, 20, 30]


def test_events_are_marks_with_their_words_as_text():
    event = {"step": 2, "kind": "warning", "message": "<img src=x onerror=alert(1)>"}
    figure = panel_figure(PANEL, [curve("cov_mean", [1, 2, 3])], View(), [event])

    assert figure.layout.shapes[0].x0 == 2
    assert "<img" not in figure.to_json()
    assert "&lt;img" in figure.to_json().replace("\\u0026", "&").replace("\\u003c", "<")


def test_a_run_with_nothing_to_show_is_an_empty_chart():
    assert len(panel_figure(PANEL, [], View()).data) == 0


def test_a_window_sets_the_range_of_x():
    assert panel_figure(PANEL, [curve("cov_mean", [1, 2, 3])], View(window=(3, 9))).layout.xaxis.range == (3, 9)


def test_runs_are_told_apart_and_their_names_are_only_text():
    figure = signal_figure(
        "cov_mean", [curve("cov_mean", [1], (1,), run="<b>a</b>"), curve("cov_mean", [2], (1,))], View()
    )

    first, second = lines(figure)
    assert first.name == "&lt;b&gt;a&lt;/b&gt;"
    assert first.line.color != second.line.color


def test_the_heat_map_shows_shares_of_each_step():
    bins = {"bin": [0, 1], "low": [0.0, 0.5], "high": [0.5, 1.0], "count": [[1, 3], [0, 0]]}
    histogram = {"name": "entropy", "unit": "nats", "step": [1, 2], **bins}
    figure = histogram_figure(histogram, View(), threshold=0.7)

    assert [list(row) for row in figure.data[0].z] == [[0.25, 0.0], [0.75, 0.0]]
    assert figure.layout.shapes[0].y0 == 0.7


def test_every_panel_is_made_of_signals_of_the_vocabulary():
    assert {name for name in RUN_PAGE_SIGNALS if name not in BY_NAME} == set()
    assert all(meaning(panel) for panel in PANELS)


def test_numbers_have_four_digits_and_nothing_is_a_dash():
    assert (number(0.123456), number(None), number(12345.6)) == ("0.1235", "–", "1.235e+04")


def test_a_curve_over_positions_is_drawn_at_its_bins_middles_in_order():
    rows = [
        {"name": "entropy_by_position", "low": 0.5, "high": 0.55, "mean": 2.0},
        {"name": "entropy_by_position", "low": 0.0, "high": 0.05, "mean": 1.0},
        {"name": "entropy_by_position_neg", "low": 0.95, "high": 1.0, "mean": 3.0},
    ]
    first, second = positions_figure(rows).data

    assert (list(first.x), list(first.y)) == (pytest.approx([0.025, 0.525]), [1.0, 2.0])
    assert (first.name, second.name) == ("all", "A < 0")
    assert len(positions_figure([]).data) == 0


def test_a_statement_that_is_refused_is_the_reason_itself():
    no = {"refused": "3 steps: 8 are needed"}
    law = {"refused": None, "ceiling": 0.961, "ceiling_low": 0.94, "ceiling_high": 0.98}
    stage = {"refused": None, "stage": "plateau", "plateau_from": 83}
    found = findings({"reward": "reward_mean", "stage": stage, "entropy_law": law, "entropy_floor_forecast": no})

    assert [(title, text) for title, text, _ in found] == [
        ("Stage", "plateau since step 83"),
        ("Ceiling", "reward mean 0.961 at entropy 0 (0.94 to 0.98)"),
        ("Entropy floor", "3 steps: 8 are needed"),
    ]


def test_every_signal_that_names_a_panel_of_the_page_is_on_the_page():
    unseen = {"num_tokens", "num_responses", "num_invalid_tokens", "wall_time_s", "step_s", "probe_ms", "reduce_ms",
              "ratio_max", "rollout_ratio_max", "rollout_tokens", "forking_rate"}  # fmt: skip

    assert set(BY_NAME) - unseen <= set(RUN_PAGE_SIGNALS)


def test_a_chart_without_values_says_so_and_has_no_axes():
    for figure in (panel_figure(PANEL, [], View()), positions_figure([])):
        assert figure.layout.xaxis.visible is False
        assert "no values" in figure.layout.annotations[0].text


def test_every_signal_a_person_may_look_for_has_a_chart():
    without_a_chart = {s.name for s in SIGNALS} - set(RUN_PAGE_SIGNALS)
    # Counts and clocks are read in SQL; the rate is d_collapse turned round; a largest ratio hides its axis's others.
    assert without_a_chart <= {
        "num_tokens", "num_responses", "num_invalid_tokens", "wall_time_s", "step_s", "probe_ms", "reduce_ms",
        "forking_rate", "ratio_max", "rollout_ratio_max", "rollout_tokens",
    }  # fmt: skip
