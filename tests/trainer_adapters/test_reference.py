"""Which policy tokens are held to, and what it says."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import tiny_trl

from entrostat.probe.selected_rows import Head
from entrostat.trainer_adapters.reference import FrozenCopy, reference_of

IDS = torch.randint(2, 20, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)


def hidden_of(model):
    with torch.no_grad():
        return model.base_model(input_ids=IDS, attention_mask=MASK).last_hidden_state


def shaken(model):
    """The weights, moved: as if the model had been trained."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


def test_without_one_there_is_none(tmp_path):
    assert reference_of(tiny_trl.trainer(tmp_path), None) is None


def test_a_frozen_copy_stays_what_the_policy_was(tmp_path):
    trainer = tiny_trl.trainer(tmp_path)
    before = hidden_of(trainer.model)

    reference = reference_of(trainer, FrozenCopy())
    shaken(trainer.model)

    assert torch.equal(reference.hidden(IDS, MASK), before)
    assert not torch.equal(hidden_of(trainer.model), before)
    assert not any(p.requires_grad for p in reference.causal_lm.parameters())


def test_a_frozen_copy_in_lower_precision_is_the_policy_nearly(tmp_path):
    trainer = tiny_trl.trainer(tmp_path)

    reference = reference_of(trainer, FrozenCopy(device="cpu", dtype=torch.bfloat16))

    assert reference.hidden(IDS, MASK).dtype == torch.bfloat16
    torch.testing.assert_close(reference.hidden(IDS, MASK).float(), hidden_of(trainer.model), rtol=0.05, atol=0.05)


def test_under_an_adapter_the_base_model_is_the_reference_and_costs_no_copy(tmp_path):
    base = tiny_trl.model()
    before = hidden_of(base)
    policy = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.5))
    trainer = tiny_trl.trainer(tmp_path, policy=policy)
    shaken(trainer.model)
    trainer.model.train()
    state = torch.get_rng_state()

    reference = reference_of(trainer, None)

    assert reference.kind == "base model"
    assert torch.equal(reference.hidden(IDS, MASK), before)
    assert torch.equal(torch.get_rng_state(), state)  # no dropout was drawn
    assert trainer.model.training
    with pytest.raises(TypeError, match="the base model is the reference, and is free"):
        reference_of(trainer, FrozenCopy())


def test_the_trainers_own_goes_before_none_and_a_given_one_before_all(tmp_path):
    trainer = tiny_trl.trainer(tmp_path, beta=0.04)
    given = tiny_trl.model(seed=9)

    assert reference_of(trainer, None).causal_lm is trainer.ref_model
    assert reference_of(trainer, given).causal_lm is given
    assert reference_of(trainer, given).kind == "given"


def test_its_head_has_the_policys_temperature(tmp_path):
    reference = reference_of(tiny_trl.trainer(tmp_path), tiny_trl.model(seed=9))

    head = reference.head(Head(torch.zeros(1, 1), temperature=0.7, softcap=3.0))

    assert torch.equal(head.weight, reference.causal_lm.lm_head.weight)
    assert (head.temperature, head.softcap) == (0.7, 3.0)


def test_something_else_is_refused(tmp_path):
    with pytest.raises(TypeError, match="reference=Linear: give a causal language model"):
        reference_of(tiny_trl.trainer(tmp_path), torch.nn.Linear(2, 2))
