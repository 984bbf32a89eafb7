# Two commands: `make run` and `make test`. Each sets up .venv by itself, once.

VENV   := .venv
BIN    := $(VENV)/bin
MODEL  ?= light:squeezenet
OUT    ?= artifacts/squeezenet
# Processes that test: one more than two cores, as tests wait for child processes and servers.
JOBS   ?= 3
# Tests of the parts that most changes touch: types, IR, schedules, code generation, records, reports.
QUICK  := tests/test_architecture.py $(addprefix tests/unit/,core ir codegen intrinsics records report)

# The first interpreter that runs and is new enough; PYTHON=... on the command line overrides it.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	&& echo $$p && break; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# uv finds and unpacks in 9 s what takes pip 60 s. It does not read pip's configuration: where that
# alone leads to an index, such as a mirror, pip installs. Neither compiles what is never imported.
PIP     := $(BIN)/python -m pip install -qq --no-compile
INSTALL  = { $(PIP) 'uv>=0.9,<1' \
	&& $(BIN)/uv pip install -q --python $(BIN)/python --editable '.[$(EXTRAS)]'; } \
	|| $(PIP) --editable '.[$(EXTRAS)]'
unexport PYTHONDONTWRITEBYTECODE
# Threads of numpy that wait for work take the time of the tests beside them.
tests quick-tests test-slow: export OPENBLAS_NUM_THREADS := 1
tests quick-tests test-slow: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help run test tests test-slow check quick-tests lint types style format docs setup clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## Tune a real network on this machine in about two minutes, and show the result
	@$(BIN)/retune tune $(MODEL) --out $(OUT) --effort quick

test: $(VENV)/.dev ## The whole gate: formatting, lint, types, layers, tests
	@$(MAKE) --no-print-directory -j 2 lint tests

tests: $(VENV)/.dev
	@MAKEFLAGS= $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow"

check: $(VENV)/.dev ## What needs neither a device nor a process, in under a minute
	@$(MAKE) --no-print-directory -j 2 types style quick-tests

quick-tests: $(VENV)/.dev
	@MAKEFLAGS= $(BIN)/python -m pytest -q -m "not slow and not device and not process" $(QUICK)

test-slow: $(VENV)/.dev ## The tests that take minutes each
	@$(BIN)/python -m pytest -q -m slow

lint: types style ## Formatting, lint, types and layers, without the tests

types: $(VENV)/.dev
	@$(BIN)/pyrefly check --summary=none

style: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log 2>&1 \
		|| { cat $(VENV)/lint-imports.log; exit 1; }

format: $(VENV)/.dev ## Format the code and mend what ruff can mend
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

docs: $(VENV)/.docs ## The documentation as a site, in artifacts/site; broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "artifacts/site/index.html"

setup: $(VENV)/.dev ## Only create the environment, with the developer's tools

clean: ## Remove the environment and caches; outputs in artifacts/ stay
	@rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "retune needs Python 3.11 to 3.14; none was found on PATH. \
	Install one, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	echo "$(PYTHON) cannot make an environment; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.run: EXTRAS := nightly,peers
$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "Installing retune into $(VENV) (once, 10 to 60 seconds) ..."
	@$(INSTALL)
	@touch $@

$(VENV)/.docs: EXTRAS := nightly,docs
$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "Installing retune and what builds its pages into $(VENV) (once) ..."
	@$(INSTALL)
	@touch $@

$(VENV)/.dev: EXTRAS := dev
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing retune and its test tools into $(VENV) (once, 10 to 60 seconds) ..."
	@$(INSTALL)
	@touch $@ $(VENV)/.run
