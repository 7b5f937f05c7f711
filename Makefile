# make demo · make test · make check · make sim · make bench. Each makes .venv by itself, once.
#   make demo ARGS=--json      the demo's own options; its last line on stdout is the demo's
#   make demo-rent ARGS=--json rents machines and serves a model on a devnet with Docker, in under 4 minutes
#   make test ARGS="-k lease"  pytest's options; with -n 0 in one process, so that -s and --pdb do what they say
#   make sim SEEDS=1000        how many seeds the simulator runs
#   make adversary            known attacks: what each gained before its rule, what it gains now, what it costs
#   make machine              the contracts and their models in Python, for thousands of steps
#   make contracts-on CHAIN=anvil   the contracts' tests on anvil or eth-tester, by web3.py; tens of minutes
#   make contract-mutants      breaks the contracts, one rule at a time: tests must notice each; tens of minutes
#   make gpu-fixture REPORT=selftest.json NAME=two-l40s   makes a test's inventory of what `quorate node selftest --gpu --json` printed
#   make prove                 proves properties of the contracts' code with halmos (installs it into .venv-prove)
#   make crash                 kill -9 at every crash point; tens of minutes. CI tries another part with every commit
#   make bench-peers           the same no-op work on Ray, Dask, Celery and Quorate (installs them into .venv-peers)
#   make soak MINUTES=10 PROVIDERS=200 CHURN=10   a market under load, CHURN percent of its providers killed a minute
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-rent test check sim bench fuzz soak bench-peers crash adversary machine contracts-on contract-mutants prove claims gpu-fixture

ARGS ?=
SEEDS ?= 300
FUZZ ?= 10
CHAIN ?= anvil
MINUTES ?= 10
PROVIDERS ?= 200
CHURN ?= 10
export PYTHON
# .venv is installed without bytecode, and a market starts some ten programs: without it each of them
# compiles a thousand modules again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider
# tests/conftest.py says which tests may run beside which others. Three processes of pytest, most of whose tests start programs of
# their own, keep two cores busy all the time; with a fourth all ends a tenth sooner, and what waits for a market waits longer.
BESIDE := --dist loadscope --no-loadscope-reorder
SIMULATE := PYTHONPATH=tests $(BIN)/python -m sim.run

help:
	@sed -n '1,/^SHELL/{s/^# *//p}' Makefile

.venv/installed-%: pyproject.toml constraints.txt .ci/make-venv
	@.ci/make-venv $*

demo: .venv/installed-devnet
	@exec $(BIN)/quorate devnet demo $(ARGS)

# With the packages that its image has: jupyter_server, and OpenAI's client outside.
demo-rent: .venv/installed-dev
	@exec $(BIN)/quorate devnet demo-rent $(ARGS)

test: .venv/installed-dev
	@$(PYTEST) -n 3 $(BESIDE) -m "not slow" $(ARGS)

# What CI runs first; under a minute once its caches are warm.
check: .venv/installed-dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo & imports=$$!; $(BIN)/mypy; types=$$?; wait $$imports && exit $$types
	@$(PYTEST) -q -n 2 $(BESIDE) -m "not slow" tests/style tests/unit
	@if [[ -f tests/sim/run.py ]]; then $(SIMULATE) --seeds 50; fi

# Writes docs/claims.md: each rule of the protocol with the tests and mutants that hold it.
claims: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python -m style.claims

sim: .venv/installed-dev
	@$(SIMULATE) --seeds $(SEEDS) $(ARGS)

# Every attack of tests/adversary as a test, and a table of them.
adversary: .venv/installed-dev
	@$(PYTEST) -q -m "not slow" --attacks tests/adversary $(ARGS)

# Every call goes to the contracts and to a model of them; after each step all balances are compared.
# `make contract-mutants` plays shorter walks against broken contracts.
machine: .venv/installed-dev
	@$(PYTEST) -q -s -m slow -k thousands tests/contracts/test_walks.py tests/contracts/test_court_walks.py $(ARGS)

# Kills daemons with -9 under load; ends with one JSON line (see tests/soak/run.py).
soak: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python -m soak.run --minutes $(MINUTES) --providers $(PROVIDERS) --churn $(CHURN) $(ARGS)

# Every fuzz test with FUZZ times its usual examples, the slow ones, and atheris over every reader of strangers' bytes; minutes.
# The last line on stdout is one JSON object of counts; `untyped` is to be 0.
fuzz: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python -m fuzz.campaign --effort $(FUZZ) $(ARGS)

# The tests themselves do not change; the last line says how many sent transactions to the chain. `make test` runs a few of them so.
contracts-on: .venv/installed-dev
	@QUORATE_CONTRACTS_ON=$(CHAIN) $(PYTEST) -q -n 2 $(BESIDE) -m "not slow" tests/contracts $(ARGS)

contract-mutants: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python -m contracts.mutation.run $(ARGS)

# halmos is a program beside us, under another licence (AGPL), and never a dependency: docs/decisions/0015.
.venv-prove/bin/halmos: .venv/installed-dev
	@$(BIN)/python -m venv .venv-prove && .venv-prove/bin/pip install -q halmos==0.3.3

prove: .venv-prove/bin/halmos
	@PYTHONPATH=tests $(BIN)/python -m contracts.prove.run $(ARGS)

gpu-fixture: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python -m support.gpu.record_inventory "$(REPORT)" "$(NAME)"

# Every crash point that is not left to the simulator, in real markets, one after the other; tens of minutes.
crash: .venv/installed-dev
	@QUORATE_CRASH_ROTATION=all $(PYTEST) -s --timeout 0 tests/e2e/test_crash.py tests/e2e/test_crash_devnet.py $(ARGS)

# Every file in tests/bench is a program that prints its figures as one JSON line.
bench: .venv/installed-dev
	@for program in tests/bench/*.py; do echo "== $$program"; PYTHONPATH=tests $(BIN)/python "$$program" $(ARGS) || exit 1; done

# Quorate beside others, and `docker run` beside a lease's container; minutes, never in CI. Prints the table of docs/performance.md.
bench-peers: .venv/installed-dev
	@PYTHONPATH=tests:tests/bench $(BIN)/python tests/bench/peers/bench_peers.py $(ARGS)
