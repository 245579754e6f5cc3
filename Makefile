# Outrider: `make demo` and `make test` need Python 3.11 and make, nothing else. Each fills .venv on its first run.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt
PINNED := constraints.txt pyproject.toml
TORCH  := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help demo test lint typecheck format bench clean

help:  ## show this
	@awk -F ':|  ## ' '/^[a-z]+:.*  ## / { printf "  make %-10s %s\n", $$1, $$3 }' Makefile

demo: $(VENV)/.demo  ## train a model on four local nodes (about 10 s after the first run)
	$(BIN)/python examples/02_digits_ddp.py

test: lint typecheck  ## everything CI checks (lint, format, layers, types, tests)
	$(BIN)/pytest

lint: $(VENV)/.dev  ## ruff (rules and format) and the import contracts
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	PYTHONPATH=.shim $(BIN)/lint-imports --no-logo

typecheck: $(VENV)/.dev  ## mypy --strict and pyright
	$(BIN)/mypy --no-error-summary -p outrider
	$(BIN)/mypy --no-error-summary examples benchmarks tests/typing
	$(BIN)/pyright --warnings

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

bench: $(VENV)/.demo  ## measure against ProcessPoolExecutor(4); a table, and JSON in benchmarks/out/
	$(BIN)/python -m benchmarks

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist outrider.egg-info examples/out benchmarks/out \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The environment, in steps that are skipped when nothing they depend on has changed. torch comes first and alone:
# whichever build of it the machine's pip finds, nothing after it names torch, so nothing after it can bring another.

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: constraints.txt | $(BIN)/python
	$(PIP) --upgrade pip setuptools
	$(PIP) $(TORCH)
	@touch $@

$(VENV)/.demo: $(VENV)/.base $(PINNED)
	$(PIP) --no-build-isolation --group examples --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --group dev
	@touch $@
