# Outrider: `make demo` and `make test` need Python 3.11 and make, nothing else. Each fills .venv on its first run.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
OTHERS := .venv-frameworks
MLFLOW := .venv-mlflow
NEWEST := .venv-newest
PIP     = $(@D)/bin/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt
UPGRADE = $(NEWEST)/bin/python -m pip --disable-pip-version-check install -qq --upgrade --upgrade-strategy eager
PINNED := constraints.txt pyproject.toml
TORCH  := torch==2.13.0
JOBS   ?= 3# tests at a time: on two cores, for most of them wait
BESIDE := --numprocesses $(JOBS) --dist worksteal
ROOMS  := api client objects record/display runtime serialization transport volumes wire# those of the engine that start no pool
QUICK  := tests/actors tests/docs tests/project tests/typing $(ROOMS:%=tests/engine/%)
LONGER := tests/engine/cli tests/docs/test_first_install.py# the matrix runs these too
POOLS  := $(patsubst %,tests/engine/integration/test_%.py,evil_values exceptions map_callables methods plain_asyncio run sync) \
	tests/newcomers# those that a library's new version breaks first
PYTHONS ?= 3.11 3.12 3.13

# Images of containers set it, and each of the thousands of processes that tests start would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-preempt picture release test quick site test-frameworks test-lab lint typecheck format bench bench-bulk bench-lab \
	bench-peers bench-scale soak \
	check mypy pyright chaos \
	chaos-aws chaos-slurm slurm stress nightly coverage matrix newest newest-versions quick-tests clean

help:  ## show this
	@awk -F ':|  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-15s %s\n", $$1, $$3 }' Makefile

demo: $(VENV)/.demo  ## train a model on four local nodes (about 10 s after the first run)
	$(BIN)/python examples/02_digits_ddp.py

demo-preempt: $(VENV)/.demo  ## the same on nodes of which one is lost every few seconds (about a minute)
	$(BIN)/python examples/13_preemptions.py

picture: demo-preempt  ## record that run anew, and draw the README's picture of it
	$(BIN)/python docs/pictures/losses.py

test: check  ## everything about Outrider itself: lint, format, layers, types, tests
	$(BIN)/pytest $(BESIDE) -m 'not nightly and not oom'
	$(BIN)/pytest -m oom tests/engine/node tests/providers/containers  # when no other test kills

quick: check quick-tests  ## in three minutes: lint, types, and the tests of deciders, the wire, the docs and the like

quick-tests: $(VENV)/.dev
	$(BIN)/pytest -q $(BESIDE) $(QUICK) $(if $(WHOLE),$(LONGER),$(LONGER:%=--ignore=%))

test-frameworks: $(OTHERS)/.frameworks  ## the frameworks themselves on pools, and the examples and guides that need them
	$(OTHERS)/bin/pytest $(BESIDE) -m 'frameworks and not nightly' tests/frameworks tests/examples tests/docs

test-lab: $(VENV)/.dev  ## tests on real hosts, in network namespaces (needs root; see tests/lab/README.md)
	$(BIN)/pytest $(BESIDE) tests/lab

check: $(VENV)/.dev  ## lint and typecheck, side by side
	@$(MAKE) --no-print-directory --jobs 2 pyright lint mypy

lint: $(VENV)/.dev  ## ruff (rules and format) and the import contracts
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	PYTHONPATH=.shim $(BIN)/lint-imports --no-logo

typecheck: mypy pyright  ## mypy --strict and pyright

mypy: $(VENV)/.dev  # two calls: packages by name and files by path cannot be in one
	MYPYPATH=.shim:tests/lab:tests/chaos $(BIN)/mypy --no-error-summary -p outrider -p netlab -p bars -p cloud -p cluster -p lives \
		-p campaigns -p slurm_lives -p localchaos
	MYPYPATH=.shim:tests/lab $(BIN)/mypy --no-error-summary examples benchmarks docs tests/typing

pyright: $(VENV)/.dev
	$(BIN)/pyright --warnings

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

site: $(VENV)/.dev  ## the documentation as a site, in build/docs/site
	$(BIN)/python docs/build_site.py

release: $(VENV)/.dev  ## build and check what a person would upload, in dist/; uploads nothing; DIRTY=1 with uncommitted changes
	.ci/release $(BIN)/python

slurm: $(VENV)/.dev  ## a Slurm cluster of hosts to try things on, until Ctrl-C; NODES=2 (root; see tests/lab/README.md)
	PYTHONPATH=tests/lab $(BIN)/python -m cluster --nodes $(or $(NODES),2) $(if $(ACCOUNTING),--accounting)

bench: $(VENV)/.demo  ## measure against ProcessPoolExecutor(4); a table, and JSON in benchmarks/out/
	$(BIN)/python -m benchmarks

bench-bulk: $(VENV)/.demo  ## gigabytes to and from a host by SSH, beside OpenSSH's own client; a table, and JSON in benchmarks/out/ (8 GB of memory)
	$(BIN)/python -m benchmarks.bulk

bench-scale: $(VENV)/.demo  ## what 10, 100 and 1,000 nodes cost their client; a table, and JSON in benchmarks/out/ (two minutes)
	$(BIN)/python -m benchmarks.scale

bench-peers: $(VENV)/.demo  ## measure beside Ray, Dask, Parsl and Monarch, each in an environment of its own; writes docs/benchmarks/peers.md
	$(BIN)/python -m benchmarks.peers --rounds $(or $(ROUNDS),5)

soak: $(VENV)/.demo  ## an hour of tasks, broadcasts, large values and lost nodes in one pool: memory and descriptors stay flat; MINUTES=60
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),60)

bench-lab: $(VENV)/.demo  ## how soon losses are seen and mended, on hosts in network namespaces (root; an hour and a half)
	$(BIN)/python -m benchmarks.lab

chaos: $(VENV)/.dev  ## random work under random faults; MINUTES=5, SEED=1, SEEDS=10, ONLY=kill-supervisor
	PYTHONPATH=tests/chaos $(BIN)/python -m localchaos --seed $(or $(SEED),1) \
		$(if $(SEEDS),--seeds $(SEEDS),--minutes $(or $(MINUTES),5)) $(if $(ONLY),--only $(ONLY))

stress: $(VENV)/.dev  ## kill a rank of a gloo broadcast at a random moment, 1,000 times (over an hour)
	OUTRIDER_STRESS=$(or $(RUNS),1000) $(BIN)/pytest -s -o faulthandler_timeout=0 tests/resilience

chaos-aws: $(VENV)/.dev  ## lives of pools on a test cloud behind a proxy that breaks HTTP (root; hours)
	PYTHONPATH=tests/lab:.shim $(BIN)/python -m campaigns --lives $(or $(LIVES),30) --seed $(or $(SEED),1) \
		--jobs $(or $(JOBS),2) $(if $(KIND),--kind $(KIND))

chaos-slurm: $(VENV)/.dev  ## lives of pools on a Slurm cluster; LIVES=20 of each kind, KIND=scancel, SEED=1, JOBS=2 (root; hours)
	PYTHONPATH=tests/lab:.shim $(BIN)/python -m slurm_lives --lives $(or $(LIVES),20) --seed $(or $(SEED),1) \
		--jobs $(or $(JOBS),2) $(if $(KIND),--kind $(KIND))

nightly: $(VENV)/.dev $(OTHERS)/.frameworks $(MLFLOW)/.mlflow  ## further cases, which take too long for each change
	$(BIN)/pytest $(BESIDE) -m nightly tests tests/lab
	$(BIN)/pytest $(BESIDE) -m hypothesis --hypothesis-profile=drawn
	$(OTHERS)/bin/pytest $(BESIDE) -m nightly tests/frameworks
	$(MAKE) --no-print-directory chaos MINUTES=30
	$(MAKE) --no-print-directory newest

coverage: $(VENV)/.dev  ## branch coverage of src by all tests that CI runs of it, in all processes (half an hour)
	.ci/coverage $(BESIDE)

matrix:  ## the quick tests and some more on each Python of 3.11 to 3.13 that is found here; PYTHONS="3.12 3.13"
	.ci/matrix $(PYTHONS)

newest: newest-versions  ## the quick tests, and some of pools, with the newest versions that pyproject.toml allows
	$(NEWEST)/bin/pytest -q $(BESIDE) $(QUICK) $(POOLS)
	$(NEWEST)/bin/pytest -q -m 'frameworks and not nightly' tests/frameworks/test_notebook.py

clean:  ## remove what the other targets made
	rm -rf .venv-peers $(VENV) $(OTHERS) $(MLFLOW) $(NEWEST) $(PYTHONS:%=.venv-%) .coverage* build dist outrider.egg-info examples/out benchmarks/out \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The environments, in steps that are skipped when nothing they depend on has changed. torch comes first and alone:
# whichever build of it the machine's pip finds, nothing after it wants another, so nothing after it can bring one.

$(VENV)/bin/python $(OTHERS)/bin/python $(MLFLOW)/bin/python $(NEWEST)/bin/python:
	$(PYTHON) -m venv $(@:/bin/python=)

$(VENV)/.base: | $(VENV)/bin/python
$(OTHERS)/.base: | $(OTHERS)/bin/python
$(VENV)/.base $(OTHERS)/.base: constraints.txt
	$(PIP) --upgrade pip setuptools
	$(PIP) $(TORCH)
	@touch $@

$(VENV)/.demo: $(VENV)/.base $(PINNED)
	$(PIP) --no-build-isolation --group examples --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --group dev
	@touch $@

$(OTHERS)/.frameworks: $(OTHERS)/.base $(PINNED)
	$(PIP) --no-build-isolation --group frameworks --editable .
	@touch $@

newest-versions: $(NEWEST)/bin/python  # new ones come at any time; torch stays
	$(UPGRADE) pip setuptools
	$(UPGRADE) $(TORCH)
	$(UPGRADE) $(TORCH) --no-build-isolation --group examples --group dev ipykernel jupyter_client --editable .

# A tracking server to send runs to: with what it needs, which is nothing of ours, it has an environment of its own.
$(MLFLOW)/.mlflow: | $(MLFLOW)/bin/python
	$(@D)/bin/python -m pip --disable-pip-version-check install -qq 'mlflow>=3'
	@touch $@
