"""The tiny model of ``tiny_trl`` in supervised training: TRL's SFTTrainer and transformers' own Trainer, on one CPU."""

import torch
from datasets import Dataset
from support import tiny_trl
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

TEXTS = ["a b c d e f", "g h i j k l m n", "o p q", "r s t a b c d"] * 4
PROMPTS = [
    {"prompt": "a b c", "completion": " d e f g"},
    {"prompt": "h", "completion": " i j"},
    {"prompt": "k l", "completion": " m n o p q"},
    {"prompt": "r s t", "completion": " a"},
] * 4
ARGUMENTS = dict(
    per_device_train_batch_size=4, max_steps=2, learning_rate=1e-3, report_to=[], bf16=False, use_cpu=True,
    save_strategy="no", logging_steps=1, disable_tqdm=True, seed=7, gradient_checkpointing=False,
)  # fmt: skip


class WithoutLogits(Qwen2ForCausalLM):
    """Its loss comes without logits, as Liger's fused cross-entropy gives it: that needs a GPU, this does not."""

    def forward(self, *args, labels=None, **kwargs):
        found = super().forward(*args, labels=labels, **kwargs)
        return CausalLMOutputWithPast(loss=found.loss, logits=None) if self.training and labels is not None else found


def without_logits(seed=0):
    """``tiny_trl.model`` as ``WithoutLogits``: the same weights."""
    model = tiny_trl.model(seed)
    model.__class__ = WithoutLogits
    return model


def sft(folder, policy=None, rows=None, **overrides):
    """An SFTTrainer: 4 texts a micro-batch, 2 steps."""
    texts = rows or [{"text": text} for text in TEXTS]
    return SFTTrainer(
        model=policy or tiny_trl.model(),
        args=SFTConfig(output_dir=str(folder), **(ARGUMENTS | {"shuffle_dataset": False} | overrides)),
        train_dataset=Dataset.from_list(texts),
        processing_class=tiny_trl.tokenizer(),
    )


def collate(rows):
    """Padded on the right, labels -100 on the padding."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids, mask, labels = (torch.full((len(rows), longest), fill) for fill in (0, 0, -100))
    for i, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[i, :n], mask[i, :n] = torch.tensor(row["input_ids"]), 1
        labels[i, :n] = torch.tensor(row.get("labels", row["input_ids"]))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def plain(folder, policy=None, rows=None, cls=Trainer, collator=collate, callbacks=(), eval_rows=None, **overrides):
    """A transformers Trainer over the same texts; ``compute_loss_func`` and ``model_init`` go to it."""
    tokenizer = tiny_trl.tokenizer()
    rows = rows or [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    own = {name: overrides.pop(name) for name in ("compute_loss_func", "model_init") if name in overrides}
    return cls(
        model=None if "model_init" in own else policy or tiny_trl.model(),
        args=TrainingArguments(output_dir=str(folder), remove_unused_columns=False, **(ARGUMENTS | overrides)),
        train_dataset=rows,
        eval_dataset=eval_rows,
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=list(callbacks),
        **own,
    )
