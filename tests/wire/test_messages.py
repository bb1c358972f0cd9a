"""The JSON documents: what is refused, and that anything a trainer has in its settings can be said."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from entrostat.wire.messages import Ack, DesiredState, StreamOpen


def opening(**fields):
    return StreamOpen(**{"run_id": "run", "session_id": "a" * 32, "started": datetime.now(UTC), **fields})


@pytest.mark.parametrize("run_id", ["a", "A.b_c-9", "x" * 128])
def test_a_good_run_id_passes(run_id):
    assert opening(run_id=run_id).run_id == run_id


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "../a", "a b", "-a", "x" * 129, "ü", "a\n", "a\x00"])
def test_a_run_id_that_could_be_a_path_or_an_option_is_refused(run_id):
    with pytest.raises(ValidationError):
        opening(run_id=run_id)


def test_a_typing_error_is_not_a_setting():
    with pytest.raises(ValidationError, match="wold_size"):
        opening(wold_size=2)
    with pytest.raises(ValidationError):
        DesiredState(version=-1)


def test_any_settings_can_be_said_in_json():
    config = {"path": Path("/x"), "lr": math.nan, "kind": datetime, "nested": {"layers": {1, 2}}}
    document = json.loads(opening(config=config).json_bytes())
    assert document["config"]["path"] == "/x"
    assert document["config"]["lr"] is None
    assert StreamOpen.model_validate(document).run_id == "run"


def test_messages_come_back_as_they_were():
    ack = Ack(acked=3, desired=DesiredState(version=2, interventions=[{"name": "scope", "because": "a hand"}]))
    assert Ack.model_validate_json(ack.json_bytes()) == ack
