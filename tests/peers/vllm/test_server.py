"""A vLLM server in a process of its own: its stream lands in a spool, and a memory is taken up while it runs."""

import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import httpx
import pytest
import torch
from peers.vllm.rollouts import PROMPTS, entropy, logits_of
from support import tiny_trl
from support.spool import spooled, values_of

from entrostat.trainer_adapters.sampling.memory_lm import MemoryLM
from entrostat.trainer_adapters.vllm.dlc import save_memory

T = 0.8
PACKAGE = "entrostat.trainer_adapters.vllm"


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = {
        "ENTROSTAT_RUN": "mine", "ENTROSTAT_DIR": str(folder / "spool"), "ENTROSTAT_URL": "http://127.0.0.1:9",
        "ENTROSTAT_DLC_MEMORY": str(folder / "memory.pt"), "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny.folder), "--port", str(port),
        "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "4",
        "--served-model-name", "tiny", "--logprobs-mode", "processed_logprobs",
        "--logits-processors", f"{PACKAGE}.rollout_stream:RolloutStream", f"{PACKAGE}.dlc:DlcServed",
    ]  # fmt: skip
    log = (folder / "log").open("w")
    process = subprocess.Popen(command, env=os.environ | ours, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", folder / "log")
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}", folder=folder)
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _wait(process, url, log):
    for _ in range(600):
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.5)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-4000:]}")


def complete(server, **settings):
    body = {
        "model": "tiny", "prompt": PROMPTS, "temperature": T, "max_tokens": 6, "ignore_eos": True, "logprobs": 0,
        "return_token_ids": True, "seed": 1,
    } | settings  # fmt: skip
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)


def responses(answer):
    return [(prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"])
            for prompt, choice in zip(PROMPTS, answer.raise_for_status().json()["choices"], strict=True)]  # fmt: skip


def test_the_engines_process_sends_what_it_samples_as_signals_of_the_run(tiny, server):
    found = {}
    for step in (1, 2):
        found[step] = responses(complete(server, seed=step, vllm_xargs={"entrostat_step": step}))
    complete(server, vllm_xargs={"entrostat_step": 2, "entrostat_rollout": 0}).raise_for_status()

    tables, openings = _arrived(server.folder / "spool", found)

    assert [(o["run_id"], o["producer"], o["config"]["dtype"]) for o in openings] == [
        ("mine", "rollout", "torch.float32")
    ]
    for step, its in found.items():
        logits = torch.cat([logits_of(tiny.model, prompt, tokens) / T for prompt, tokens, _ in its])
        values = values_of(merged(tables["step_metric"]), step)
        assert values["rollout_tokens"] == len(PROMPTS) * 6
        assert values["rollout_entropy_mean"] == pytest.approx(entropy(logits).mean().item(), abs=1e-4)
        top = logits.log_softmax(-1).topk(3).values.mean(0)
        assert [values[f"rollout_rank_logp_{n}"] for n in (1, 2, 3)] == pytest.approx(top.tolist(), abs=1e-4)


def _arrived(spool, steps):
    """The spool once all tokens of ``steps`` are there."""
    for _ in range(60):
        tables, openings = spooled(spool)
        if "step_metric" in tables:
            metrics = merged(tables["step_metric"])
            wanted = len(PROMPTS) * 6
            if all(values_of(metrics, step).get("rollout_tokens") == wanted for step in steps):
                return tables, openings
        time.sleep(0.5)
    raise AssertionError(f"the stream did not arrive: {tables}")


def merged(metrics):
    """Parts that came in several sendings, added up: each of these rules adds its numbers."""
    summed = metrics.groupby(["step", "name", "merge"]).state.apply(lambda states: [sum(x) for x in zip(*states)])
    return summed.reset_index()


def test_a_request_that_names_no_step_as_a_number_is_refused(server):
    answer = complete(server, vllm_xargs={"entrostat_step": "three"})

    assert answer.status_code == 400
    assert "entrostat_step='three'" in answer.text


@pytest.mark.parametrize(("seed", "mu"), [(5, 0.5), (6, 1.5)])
def test_a_memory_is_taken_up_while_the_server_runs(tiny, server, seed, mu):
    memory = tiny_trl.model(seed, initializer_range=0.3).eval()
    save_memory(server.folder / "memory.pt", MemoryLM(memory), mu)
    time.sleep(1.1)  # the file is looked at once a second

    for prompt, tokens, reported in responses(complete(server)):
        logits = logits_of(tiny.model, prompt, tokens) - mu * logits_of(memory, prompt, tokens)
        logp = (logits / T).log_softmax(-1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        assert reported == pytest.approx(logp.tolist(), abs=1e-4)
