SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

# A Python for the environment, and what to put into it: `gpu` is SGLang with all it
# asks for (11 GB), `cpu` the part of it that runs without one (3 GB).
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,\
	$(shell command -v $(p) 2>/dev/null)))
VARIANT ?= $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo gpu || echo cpu)

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
LOG := $(VENV)/setup.log
RUNTIME := requirements/cpu-runtime.txt requirements/lmcache.txt requirements/dev.txt
LOCK := requirements/cpu-lock.txt
CHECKED := $(wildcard sglang_qsa kernels tests benchmarks)

# Test files run side by side; each starts its servers one after the other.
WORKERS ?= 2

# SGLang starts ninja and LMCache by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# pip, with a line per package on the screen and everything in $(LOG).
define pip_install
	echo "==> $(1)"
	$(BIN)/python -m pip install --no-input --disable-pip-version-check \
		--no-warn-conflicts --progress-bar off $(2) 2>&1 | tee -a $(LOG) \
		| awk '/^ *(Collecting|Downloading|Building|Installing|Successfully)/ \
			{ print "    " substr($$0, 1, 96); fflush() }' \
		|| { tail -n 40 $(LOG); echo "pip failed; all of it is in $(LOG)"; exit 1; }
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' \
		$(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMPS)/package-$(VARIANT) ## build or update .venv

.PHONY: demo
demo: setup ## prompt, kill -9, restart, restore: the story, on this machine
	@$(BIN)/sglang-qsa demo $(DEMO_ARGS)

.PHONY: test
test: setup lint ## checks and tests, all that run without a GPU
	@$(BIN)/python -m pytest -m "not gpu" -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

.PHONY: campaign
campaign: setup ## the long forms of tests that `make test` runs small
	@QSA_TEST_STORE_CHUNKS=64,128,256 QSA_TEST_EVERY_HOOK=1 QSA_TEST_STORE_CASES=2400 \
		QSA_TEST_RESTARTS=1 QSA_TEST_EVERY_MUTATION=1 $(BIN)/python -m pytest \
		-m "not gpu" tests/cpu/test_coarse_chunks.py tests/cpu/test_refusals.py \
		tests/cpu/test_mooncake.py tests/cpu/test_linker.py tests/cpu/test_disk.py \
		tests/cpu/test_mtp.py \
		tests/tiers/store tests/benchmarks/gsm8k $(PYTEST_ARGS)

.PHONY: trained
TRAINED ?= .trained
TRAINED_SIZE ?= $(if $(filter gpu,$(VARIANT)),full,small)
TRAINED_DEVICE ?= $(if $(filter gpu,$(VARIANT)),cuda,cpu)
trained: setup ## train a small model, and evaluate healthy and broken tiers with it
	@$(BIN)/python -m benchmarks.trained_model --out $(TRAINED) \
		--device $(TRAINED_DEVICE) --size $(TRAINED_SIZE)
	@QSA_TEST_TRAINED_MODEL=$(abspath $(TRAINED)) \
		QSA_TEST_TRAINED_DEVICE=$(TRAINED_DEVICE) $(BIN)/python -m pytest \
		tests/benchmarks/gsm8k/test_trained.py $(PYTEST_ARGS)

.PHONY: lint lint-ruff lint-format lint-mypy lint-manifest lint-readme
lint: lint-ruff lint-format lint-mypy lint-manifest lint-readme ## what pre-commit runs
lint-ruff: setup
	@echo "==> ruff check" && $(BIN)/ruff check --quiet .
lint-format: setup
	@echo "==> ruff format" && $(BIN)/ruff format --quiet --check .
lint-mypy: setup
	@echo "==> mypy --strict" && $(BIN)/mypy --no-error-summary $(CHECKED)
lint-manifest: setup
	@echo "==> patch manifest" && $(BIN)/python -m sglang_qsa.manifest
lint-readme: setup
	@echo "==> table in README.md" && \
		$(BIN)/python -m sglang_qsa.readme_table --check README.md

.PHONY: format
format: setup ## rewrite the code in the house format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

.PHONY: lock
lock: setup ## write down the versions in .venv (after changing a requirement)
	@$(BIN)/python -m pip freeze --all --exclude-editable --disable-pip-version-check \
		2>/dev/null \
		| grep -viE '^(pip|torch|torchvision|triton|sglang|nvidia-[a-z0-9-]*)==' \
		| sed '1i # Known to work together. Written by `make lock`; do not edit.' \
		> $(VENV)/lock.txt
	@mv $(VENV)/lock.txt $(LOCK) && wc -l $(LOCK)

.PHONY: clean
clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Each stamp is newer than the files that it was made from.

$(STAMPS)/venv-$(VARIANT):
	@[[ -n "$(PYTHON)" ]] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "found $(or $(PYTHON),no Python); 3.11 or newer is needed (make PYTHON=...)"; exit 2; }
	@need=; py=python$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	command -v g++ >/dev/null || need+=" g++"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || need+=" $$py-venv"; \
	inc=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	[[ -f $$inc/Python.h ]] || need+=" $$py-dev"; \
	if [[ -n $$need ]]; then \
		if [[ $$(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then \
			echo "missing:$$need (Debian's names); install them and run make again"; exit 2; \
		fi; \
		echo "==> Debian packages:$$need"; \
		apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$need; \
	fi
	@echo "==> $(VENV) ($(VARIANT)), $$($(PYTHON) --version)"
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: requirements/cpu-torch.txt $(STAMPS)/venv-$(VARIANT)
	@$(call pip_install,torch: 1 of 4,-c $(LOCK) -r $<)
	@touch $@

$(STAMPS)/no-deps: requirements/cpu-no-deps.txt requirements/bench.txt $(STAMPS)/torch
	@$(call pip_install,SGLang without its GPU packages: 2 of 4,--no-deps \
		-r requirements/cpu-no-deps.txt -r requirements/bench.txt)
	@touch $@

# Mooncake's tests are skipped without these; all else runs.
$(STAMPS)/libraries: $(STAMPS)/venv-$(VARIANT)
	@need=; for pair in libibverbs.so.1=libibverbs1 librdmacm.so.1=librdmacm1 \
			libcurl.so.4=libcurl4 libnuma.so.1=libnuma1; do \
		PATH=$$PATH:/sbin:/usr/sbin ldconfig -p | grep "$${pair%=*}" >/dev/null \
			|| need+=" $${pair#*=}"; \
	done; \
	if [[ -z $$need ]]; then true; \
	elif [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null \
		&& echo "==> Debian packages:$$need" && timeout 120 apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive timeout 120 \
			apt-get install -qq --no-install-recommends $$need >>$(LOG) 2>&1; then true; \
	else \
		echo "missing:$$need (Debian's names); Mooncake's tests will be skipped"; \
	fi
	@touch $@

# The resolver may move Triton to what torch names; the second line moves it back.
$(STAMPS)/runtime: $(RUNTIME) $(LOCK) $(STAMPS)/no-deps $(STAMPS)/libraries
	@$(call pip_install,what runs on a CPU and the tools: 3 of 4,-c $(LOCK) $(RUNTIME:%=-r %))
	@$(BIN)/python -m pip install -q --no-deps -r requirements/cpu-no-deps.txt \
		>>$(LOG) 2>&1
	@touch $@

$(STAMPS)/package-cpu: pyproject.toml setup.py $(STAMPS)/runtime
	@$(call pip_install,sglang-qsa: 4 of 4,--no-deps --no-build-isolation -e .)
	@touch $@

# SGLang and LMCache in one resolution is impossible: requirements/lmcache.txt says why.
$(STAMPS)/package-gpu: pyproject.toml setup.py $(RUNTIME) requirements/bench.txt \
		$(STAMPS)/venv-$(VARIANT)
	@$(call pip_install,sglang-qsa with all of SGLang and the tools: 1 of 3,-e .[dev])
	@$(call pip_install,LMCache: 2 of 3,-r requirements/lmcache.txt)
	@$(call pip_install,what evaluates: 3 of 3,--no-deps -r requirements/bench.txt)
	@touch $@
