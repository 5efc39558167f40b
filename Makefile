# The only runner. 'make help' lists what it does; CONTRIBUTING.md says when to use which.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.NOTPARALLEL:

# A Python for the set-up: 3.11 or newer. Everything after the set-up runs in .venv.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
endif

BIN := .venv/bin
HOME_OF_DEVELOPMENT := $(CURDIR)/.cache/home
ENGINE_EVENTS := $(CURDIR)/.cache/engine-events
WITH_HOME := env -u TORPOR_API_URL -u TORPOR_API_KEY TORPOR_HOME=$(HOME_OF_DEVELOPMENT)
BENCH_FLAGS ?= --json
# Compiled modules are kept, whatever the shell says, and beside the sources none; numpy needs no threads of its own:
# together half of what a run of many short processes takes.
PYTEST := env PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.cache/pycache OPENBLAS_NUM_THREADS=1 \
    $(BIN)/python -m pytest

.PHONY: help demo test test-long check gates setup setup-check undo regen bench soak lock python

help: ## say what there is
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: setup ## set everything up, then play an agent's day on real data
	@$(WITH_HOME) $(BIN)/python bench/demo.py

test: setup gates ## everything, the real engine included; this is the CI
	@rm -f $(ENGINE_EVENTS)
	@$(PYTEST) -m "not engine" -n 2 --dist worksteal
	@TORPOR_ENGINE_COUNTER=$(ENGINE_EVENTS) TORPOR_ENGINE_REQUIRED=1 $(BIN)/python -m pytest -m "engine and not long"

test-long: setup ## templates and real workloads built from downloaded packages, on the real engine; 10 minutes more
	@$(BIN)/python -m pytest -m "engine and long" --timeout 1200 -o faulthandler_timeout=2400

check: setup-check gates ## its fast part: no root, no engine, two minutes
	@TORPOR_CHECK=1 $(PYTEST) -m "not engine and not slow" -n 2 --dist worksteal

setup: python ## all set-up: system packages, .venv, engine, template
	@$(PYTHON) setup/run.py engine

undo: python ## take the set-up back; PACKAGES=1 removes the system packages it installed as well
	@PACKAGES=$(PACKAGES) $(PYTHON) setup/run.py undo

regen: setup-check ## write generated documents and golden files anew; look at the difference before you commit
	@$(BIN)/python -m torpor.testing.regen
	@$(BIN)/python -m torpor.apps.cli.reference
	@TORPOR_REGENERATE=1 $(BIN)/python -m pytest -q -m "not engine" tests/golden

bench: setup ## run every bench, write the report of record, put its figures into README and SPECIFICATION
	@mkdir -p docs/reports
	@$(WITH_HOME) $(BIN)/torpor bench all $(BENCH_FLAGS) >.cache/bench.json; code=$$?; \
	    $(BIN)/python -m json.tool .cache/bench.json >/dev/null || exit $$code; \
	    cp .cache/bench.json docs/reports/bench.json && $(BIN)/python bench/readme_figures.py && exit $$code

soak: setup ## random operations and faults for an hour (DURATION=3600, SEED=); writes docs/reports/soak.md
	@PYTHONPATH=tests/e2e DURATION=$(DURATION) SEED=$(SEED) $(BIN)/python bench/soak.py

lock: setup-check ## bring requirements.lock to what pyproject.toml asks for; UPGRADE=1 takes the newest of everything
	@UPGRADE=$(UPGRADE) $(PYTHON) setup/lock.py

# Not for people: the parts of the above.
gates:
	@mkdir -p .cache
	@$(BIN)/ruff format --check --quiet . || { echo "remedy: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports >.cache/lint-imports.log 2>&1 || { cat .cache/lint-imports.log; exit 1; }

setup-check: python
	@$(PYTHON) setup/run.py check

python:
	@if [ -z "$(PYTHON)" ]; then echo "cannot go on: no Python 3.11 or newer is on PATH;" \
	    "install one, or say make PYTHON=/path/to/python3" >&2; exit 1; fi
