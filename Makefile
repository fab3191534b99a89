# Thin names for the commands a person types. `make` alone lists them.

PYTHON ?= $(or $(shell command -v python3.11 2>/dev/null),$(shell command -v python3 2>/dev/null))
CORES ?=
ARGS ?=

# Relative: the path of the clone may hold spaces and quotes.
BIN := .venv/bin
# The jobs of a study call `python`; it is this one, whether or not the environment is activated.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Ordinary snakemake, after a look whether another study, living or dead, holds the directory.
SNAKEMAKE = $(BIN)/python -m rlvr.study.launch -- $(if $(CORES),--cores $(CORES))

NEEDS_PYTHON = test -n "$(PYTHON)" || \
	{ echo "error: no Python on the PATH; name one: make PYTHON=/path/to/python3.11" >&2; exit 2; }

.DEFAULT_GOAL := help
.PHONY: help environment reproduce smoke ladder factorial check test fuzz mutants coverage test-engines test-engines-short test-engines-gpu-pins gpu-check lint docs ui status clean-state lock lock-engines licences audit

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  CORES=4 takes 4 cores instead of all; ARGS=\"-n\" is passed on to snakemake (or to pytest by make test)."

environment: ## make .venv from requirements.lock, if it is missing or outdated
	@$(NEEDS_PYTHON)
	@"$(PYTHON)" workflow/envs/install.py

reproduce: environment ## run the default study, to results/report.html
	@$(SNAKEMAKE) $(ARGS)

smoke: environment ## run the same study cut down to about a minute, in results/smoke
	@$(SNAKEMAKE) --directory results/smoke --configfile config/smoke.yaml $(ARGS)

ladder: environment ## run the default task on models of four sizes, in results/ladder (hours: docs/evaluation.md)
	@$(SNAKEMAKE) all rates --directory results/ladder --configfile config/ladder.yaml $(ARGS)

factorial: environment ## run which part of a method matters, on models of two sizes, in results/factorial (hours)
	@$(SNAKEMAKE) --directory results/factorial --configfile config/factorial.yaml $(ARGS)

check: environment ## run what a newcomer runs first: the tests of methods and scores, in about two minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit/methods tests/unit/scores --numprocesses $(or $(CORES),auto) $(ARGS)

test: environment ## run all tests that need no GPU (about 25 minutes on two cores)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ignore=tests/engines --numprocesses $(or $(CORES),auto) $(ARGS)

fuzz: environment ## try a million hostile inputs (CASES=150000 a test): configurations, files, logs, servers, checkpoints, texts
	@HOSTILE_CASES=$(or $(CASES),150000) $(BIN)/python -m pytest tests/security/test_hostile_*.py \
		--numprocesses $(or $(CORES),auto) $(ARGS)

# A tool beside the environment's packages, in none of the lock files.
WITH = OMP_NUM_THREADS=1 VIRTUAL_ENV="$$PWD/.venv" $(BIN)/uv run --quiet --no-project --active --with

mutants: environment ## change losses, token weights and statistics in 4,300 places: tests must notice 95 % (hours)
	@rm -rf mutants
	@$(WITH) mutmut==3.8.1 mutmut run --max-children $(or $(CORES),1) $(ARGS)
	@$(BIN)/python tests/mutants.py

coverage: environment ## print the part of lines and branches of methods, statistics and grader that their tests run
	@$(WITH) coverage==7.17.3 coverage run -m pytest --quiet tests/unit/methods tests/statistics tests/unit/grading $(ARGS)
	@$(WITH) coverage==7.17.3 coverage combine --quiet
	@for package in rlvr/methods evals/statistics evals/grading; do echo "$$package: $$($(WITH) coverage==7.17.3 \
		coverage report --include "$$package/*" --format total) %"; done

# $(call engines_tests,ENVIRONMENT)
engines_tests = PATH="$$PWD/$(1)/bin:$$PATH" $(1)/bin/python -m pytest tests/engines \
	tests/unit/engine/test_lora.py tests/unit/engine/test_vllm_rollouts.py \
	--numprocesses 2 $(ARGS)

gpu-check: environment ## measure the first facts about this machine's GPU in at most 15 minutes, to gpu-check.jsonl
	@$(BIN)/python benchmarks/gpu/check.py $(ARGS)

test-engines: ## run the tests against real verl, vLLM, peft and gguf, in an environment of their own (.venv-engines)
	@$(NEEDS_PYTHON)
	@"$(PYTHON)" workflow/envs/install.py engines
	@$(call engines_tests,.venv-engines)

test-engines-short: ## the same without the long runs: parity, one run by verl, killed and continued
	@$(MAKE) --no-print-directory test-engines ARGS="-m 'not long' $(ARGS)"

test-engines-gpu-pins: ## run these with torch and vLLM at the releases of verl.yaml, which GPUs get (.venv-gpu-pins)
	@$(NEEDS_PYTHON)
	@"$(PYTHON)" workflow/envs/install.py gpu-pins
	@$(call engines_tests,.venv-gpu-pins) -m 'not long'

lint: environment ## check style, types, imports between packages, and the workflow
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/mypy
	@$(BIN)/snakefmt --check Snakefile workflow
	@$(BIN)/snakemake --lint --quiet all

docs: environment ## build all pages as a site, build/site/index.html, and check their links
	@rm -rf build && mkdir -p build/pages
	@git ls-files '*.md' docs 'packages/*/docs' config profiles CITATION.cff LICENSE | tar -cf - -T - | tar -xf - -C build/pages
	@$(BIN)/uvx --quiet --from mkdocs-material==9.6.0 --with latex2mathml==3.78.1 mkdocs build --strict --quiet
	@! grep -rlE '<(script|link|img|iframe)[^>]* (src|href)="?https?:' build/site --include='*.html'

ui: environment ## show the runs in MLflow, on this machine only
	@$(BIN)/python -m rlvr ui --results results $(ARGS)

status: environment ## say what snakemake would make again, and why; then check every byte of the results
	@$(SNAKEMAKE) --dry-run --quiet rules $(ARGS)
	@$(BIN)/python -m rlvr verify results

clean-state: environment ## delete saved training state; finished results stay
	@$(BIN)/python -m rlvr clean-state

lock: environment ## make requirements.lock from requirements.in (ARGS="--upgrade": newer versions)
	@ARGS="$(ARGS)" "$(PYTHON)" workflow/envs/install.py lock

lock-engines: environment ## make workflow/envs/engines.lock from engines.in, after make lock
	@ARGS="$(ARGS)" "$(PYTHON)" workflow/envs/install.py lock engines

licences: environment ## list the licence of every locked package in docs/licences.md, after make test-engines
	@$(BIN)/python -m workflow.envs.licences .venv/lib/python3.11/site-packages \
		.venv-engines/lib/python3.11/site-packages > .venv/licences.md
	@mv .venv/licences.md docs/licences.md

audit: environment ## ask PyPI for known vulnerabilities of all locked versions; fails where one cannot be looked up
	@for lock in requirements workflow/envs/engines; do \
		grep -v -e --hash $$lock.lock | sed 's/+cpu//; s/ \\$$//' > .venv/audit.txt; \
		$(BIN)/uvx --quiet pip-audit==2.10.1 --strict --no-deps --disable-pip --progress-spinner off \
			--requirement .venv/audit.txt || exit 1; done
