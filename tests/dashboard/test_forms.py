"""The form is the catalogue: every parameter has a field, and what the catalogue refuses the form refuses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrostat.dashboard import forms
from entrostat.wire.errors import BadParameter
from entrostat.wire.interventions import BY_NAME, INTERVENTIONS

NUMBERS = [(i.name, p) for i in INTERVENTIONS for p in i.params if p.kind in ("number", "integer")]


def ids(component):
    """Ids of a component and of all in it."""
    found = [component.id] if getattr(component, "id", None) else []
    children = getattr(component, "children", None) or []
    for child in children if isinstance(children, list) else [children]:
        found += ids(child) if hasattr(child, "to_plotly_json") else []
    return found


@pytest.mark.parametrize("intervention", INTERVENTIONS, ids=lambda i: i.name)
def test_every_parameter_has_a_field(intervention):
    made = [i for field in forms.fields(intervention, {}) for i in ids(field)]

    assert {i["name"] for i in made if i["type"] == "param"} == {p.name for p in intervention.params}


@pytest.mark.parametrize("intervention", INTERVENTIONS, ids=lambda i: i.name)
def test_the_defaults_typed_in_are_the_defaults(intervention):
    typed = {p.name: forms._text(p.default) for p in intervention.params}
    params, wrong = forms.read(intervention.name, typed)

    assert wrong == {}
    assert params == {p.name: p.default for p in intervention.params if p.default is not None}


@given(case=st.sampled_from(NUMBERS), value=st.one_of(st.floats(-1e7, 1e7), st.integers(-3, 3)))
def test_the_form_refuses_what_the_catalogue_refuses(case, value):
    name, param = case
    value = round(value) if param.kind == "integer" else value
    params, wrong = forms.read(name, {param.name: repr(value)})
    try:
        BY_NAME[name].checked({param.name: value})
    except BadParameter:
        assert param.name in wrong
        assert param.allowed in wrong[param.name]
    else:
        assert params == {param.name: value}


@given(case=st.sampled_from(NUMBERS), edge=st.sampled_from(["ge", "gt", "le", "lt"]))
def test_an_edge_belongs_to_the_bounds_as_declared(case, edge):
    name, param = case
    if edge not in param.bounds:
        return
    _, wrong = forms.read(
        name, {param.name: repr(int(param.bounds[edge]) if param.kind == "integer" else param.bounds[edge])}
    )

    assert bool(wrong) == (edge in ("gt", "lt"))


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "1,5", "0x1", "1e"])
def test_what_is_no_number_is_told_with_what_it_may_be(text):
    params, wrong = forms.read("kl_cov", {"k": text})

    assert params == {}
    assert "0 < x <= 1" in wrong["k"]


def test_an_empty_field_is_left_out_so_that_the_papers_value_counts():
    assert forms.read("kl_cov", {"k": "", "beta": None, "clip": None}) == ({}, {})


def test_words_and_choices_become_values():
    assert forms.read("kl_cov", {"clip": "false"})[0] == {"clip": False}
    assert forms.read("selective_kl", {"strategy": "forking"})[0] == {"strategy": "forking"}
    assert "uniform or" in forms.read("selective_kl", {"strategy": "all"})[1]["strategy"]


def test_only_what_the_run_allows_can_be_chosen():
    free = {o["value"] for o in forms.options(["kl_cov"]) if not o["disabled"]}

    assert free == {"kl_cov"}
    assert not any(o["disabled"] for o in forms.options(None))


def test_the_last_step_is_a_whole_number_or_nothing():
    assert (forms.step_of(""), forms.step_of(None), forms.step_of(" 120 ")) == (None, None, 120)
    for text in ("-1", "1.5", "soon"):
        with pytest.raises(ValueError, match="whole number"):
            forms.step_of(text)


def test_a_value_is_shown_as_it_can_be_typed_again():
    for value in (0.1, 1.0, 1e-7, 123456.789, 1 / 3):
        assert math.isclose(float(forms._text(value)), value, rel_tol=0)
