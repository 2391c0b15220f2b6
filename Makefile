# Needs Python 3.11 to 3.13, make, git and a package index; everything else goes into .venv.
# `make` lists the targets.

VENV    := .venv
BIN     := $(VENV)/bin
TRAIN   := $(VENV)/installed-train
ALL     := $(VENV)/installed-all
SUITS   := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON  ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
             $$p -c '$(SUITS)' 2>/dev/null && echo $$p && break; done)
COMPILE := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
             --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
# Two at a time, each file by one process: what its tests share is made once. The order is that of tests/conftest.py.
PYTEST  := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
ARGS    ?=

.PHONY: help train test test-ci test-long check docs bench lock

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(TRAIN) ## train; options: make train ARGS="model=mobilenet train.steps=100"
	$(BIN)/python train.py $(ARGS)

test: $(ALL) ## the quick tests, without those marked slow or long; more pytest options in ARGS
	$(PYTEST) -m "not slow and not long" $(ARGS)

test-ci: $(ALL) ## also the slow tests: clusters, kills, the wheel, and all that take more than two seconds
	$(PYTEST) -m "not long" --durations=30 $(ARGS)

test-long: $(ALL) ## every test: also further seeds, kills, schedules, layouts and whole recipes
	$(PYTEST) --durations=30 $(ARGS)

check: docs ## lint, format, types, documentation, and pip check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pip check

docs: $(ALL) ## write the generated pages, and build the documentation into site/; a warning is an error
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(ALL) ## measure step and start-up time against the peers (benchmarks/README.md)
	$(BIN)/python -m benchmarks.loop $(ARGS)
	$(BIN)/python -m benchmarks.start

lock: $(ALL) ## refresh the locked requirements from pyproject.toml
	$(COMPILE) --upgrade --all-extras --output-file requirements.lock pyproject.toml
	$(COMPILE) --constraint requirements.lock --output-file requirements-train.lock pyproject.toml
	printf 'setuptools\nwheel\n' | $(COMPILE) --constraint requirements.lock --output-file requirements-build.lock -

# One dependency is published as source only; without build isolation it is built by the locked setuptools, which
# therefore has to be there first, and nothing is downloaded that is not in a lock.
$(TRAIN): requirements-train.lock requirements-build.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Steadfast needs Python 3.11, 3.12 or 3.13; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(BIN)/python -c '$(SUITS)' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements-train.lock
	@# The warning that is silenced is setuptools explaining what an editable install is.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Tests, checks and documentation need the optional packages and the tools too.
$(ALL): $(TRAIN) requirements.lock
	$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements.lock
	@touch $@
