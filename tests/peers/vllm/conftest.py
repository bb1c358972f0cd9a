"""Only where vLLM is: these tests run in a virtual environment of their own, by ``make test-vllm``.

Elsewhere nothing here is collected; pytest given this folder alone then ends with status 5, so that ``make test-vllm``
cannot pass without vLLM.
"""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

if find_spec("vllm"):  # this file is imported where its tests are not run, too
    # Before vLLM is imported: the engine in this process, small, and nothing looked for on a network.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling vLLM's helpers takes half a minute, longer than all tests run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a two-layer Qwen2 and its tokenizer, and the same model in transformers, in float32."""
    from support import tiny_trl

    # vLLM's attention on the CPU has no heads of 16; the wider spread makes distributions that differ.
    model = tiny_trl.model(hidden_size=64, initializer_range=0.3)
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    tiny_trl.tokenizer().save_pretrained(folder)
    return SimpleNamespace(folder=folder, model=model.eval())


@pytest.fixture(scope="session")
def engine(tiny):
    """One engine for all tests: a probe on the policy, DLC at mu 0, a probe on what is sampled from.

    Eight tokens a step and four requests at once: prompts come in pieces, requests wait, leave and move.
    """
    from support import tiny_trl
    from vllm import LLM

    from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM
    from entrostat.trainer_adapters.vllm.dlc import DlcRollouts
    from entrostat.trainer_adapters.vllm.live import runner_of
    from entrostat.trainer_adapters.vllm.rollout_probe import RolloutProbe

    before, after = RolloutProbe(n=3), RolloutProbe(n=3)
    dlc = DlcRollouts(MemoryLM(tiny_trl.model(seed=5, initializer_range=0.3)), mu=0.0)
    llm = LLM(
        str(tiny.folder), dtype="float32", enforce_eager=True, max_model_len=64, max_num_seqs=4,
        max_num_batched_tokens=8, seed=0, logprobs_mode="processed_logprobs",
        logits_processors=[before.processor, dlc.processor, after.processor],
    )  # fmt: skip

    def processors():
        """The runner's own list of processors."""
        return runner_of(llm).input_batch.logitsprocs.non_argmax_invariant

    return SimpleNamespace(llm=llm, before=before, dlc=dlc, after=after, processors=processors)


@pytest.fixture(autouse=True)
def _as_it_was(request):
    """The engine's processors are as each test expects them: nothing measured yet, DLC off."""
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        engine.dlc.mu = 0.0
        engine.before.join([])
        engine.after.join([])
