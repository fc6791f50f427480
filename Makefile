# Two commands do everything on a fresh machine: `make run` and `make test`. The others are their parts.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard kvasir/kernels/csrc/*.c kvasir/kernels/csrc/*.h) kvasir/kernels/build.py tools/build/backend.py

.PHONY: run demo test test-long lint types unit bench docs clean help
.DEFAULT_GOAL := help

help:  ## Show what each target does
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Kvasir needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make run PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: install your system's python3-venv package, then run this again."; exit 1; }
	@touch $@

$(VENV)/.run: $(VENV)/.python requirements.txt pyproject.toml $(NATIVE)
	@echo "Installing Kvasir into $(VENV) (the first time takes a few minutes: torch is large)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt || { echo "pip could not install the packages named in requirements.txt; its message is above."; exit 1; }
	@$(BIN)/python -m kvasir.kernels.build
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt tools/install_test_tools.sh
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt || { echo "pip could not install the packages named in requirements-dev.txt; its message is above."; exit 1; }
	@sh tools/install_test_tools.sh
	@touch $@

run: $(VENV)/.run  ## The whole service on this machine: a sample, then it serves until Ctrl-C (KVASIR_ONCE=1: only the sample)
	@$(BIN)/python manage.py up

demo: $(VENV)/.run  ## Without a service: two workers compute every expert, and every logit is compared with one process
	@$(BIN)/python manage.py demo

test: $(VENV)/.dev lint types unit  ## Everything that CI checks

lint: $(VENV)/.dev  ## ruff, the import rules, and biome over the JavaScript
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.check_javascript lint

types: $(VENV)/.dev  ## mypy --strict, and tsc over the JavaScript
	@$(BIN)/mypy
	@$(BIN)/python -m tools.check_javascript types

unit: $(VENV)/.dev  ## The tests, with coverage; a third process uses what two leave of two cores while they wait
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m "not long" --cov --cov-report= --cov-fail-under=85

test-long: $(VENV)/.dev  ## What takes longer: provoked failures of browsers, rebuilt kernels, chaos, smoke runs of benchmarks
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m long

bench: $(VENV)/.dev  ## The benchmarks, one JSON line each
	@for name in exact expert generate load relay serve market slices audit trace webgpu vs_llamacpp long_context full_shape threads overhead scale latency_hiding hot_cache wire speculate; do $(BIN)/python -m benchmarks.bench_$$name --json || exit 1; done

docs: $(VENV)/.dev  ## The documentation as a site in run/docs/; a broken link fails
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs run/docs

clean:  ## Remove the environment and what was built
	rm -rf $(VENV) kvasir/kernels/_native build *.egg-info run
