"""What a run says of its settings, with the real classes that hold them."""

import json

import pytest
from transformers import TrainingArguments
from trl import GRPOConfig

from entrostat.trainer_adapters.run_info import plain
from entrostat.wire.strict_json import loads

SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"


@pytest.mark.parametrize("kind", [TrainingArguments, GRPOConfig])
def test_no_secret_of_a_trainers_arguments_is_recorded(tmp_path, kind):
    more = {"model_init_kwargs": {"token": SECRET, "revision": "main"}} if kind is GRPOConfig else {}
    arguments = kind(str(tmp_path), hub_token=SECRET, use_cpu=True, bf16=False, run_name=f"with {SECRET}", **more)
    told = plain(arguments.to_dict())

    assert SECRET not in json.dumps(told)
    assert told["learning_rate"] == arguments.learning_rate
    assert told["run_name"].startswith("with ")


def test_the_environment_of_somebodys_own_configuration_is_not_recorded_either():
    told = plain(
        {
            "env": {"WANDB_API_KEY": "0123456789abcdef", "HF_TOKEN": SECRET, "HOME": "/home/bob"},
            "stores": [{"url": "s3://k:p4ss@bucket/x", "aws_secret_access_key": "x", "region": "here"}],
        }
    )

    assert told["env"] == {"HOME": "/home/bob"}
    assert "p4ss" not in json.dumps(told)
    assert told["stores"][0]["region"] == "here"


def test_what_a_server_would_refuse_does_not_leave():
    deep = {"a": 1}
    for _ in range(500):
        deep = {"deeper": deep}
    told = plain({"deep": deep, "half": "\ud800", "whole": "ok"})

    assert loads(json.dumps(told))["whole"] == "ok"
    assert told["half"] == "?"
