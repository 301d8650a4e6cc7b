# make demo   plan and train the home example, from nothing
# make quick  unit tests without the slow ones, for the edit loop: under a minute, no processes
# make test   all tests: half an hour on two cores
# make test-gpu  stages on a CUDA device (tests/gpu); without one, or with torch for CPU, all of them are skipped
# make fuzz   mutated frames, messages and files against their readers: two minutes or three (Linux)
# make docs   the site of docs/, in build/docs; a broken link or anchor fails
# make lint   ruff, format, mypy, docs
# make check  lint, then all tests: with the fuzzer, what CI runs
# make clean  remove .venv and what the other targets left; runs and plans of yours stay
#
# PYTHON picks the interpreter of .venv; PIP_ARGS is added to pip's arguments (an index, for instance).

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP_ARGS ?=

BIN := .venv/bin
# Three workers, whatever the machine: tests that start processes wait much, and form three groups (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n 3
STAMP := .venv/.installed

.PHONY: demo quick test test-gpu fuzz lint check docs clean install

demo: $(STAMP)
	$(BIN)/ravnest plan examples/home/nodes.yaml --min-stages 2
	$(BIN)/ravnest run plan.yaml

quick: $(STAMP)
	$(PYTEST) tests/unit -m "not slow"

test: $(STAMP)
	$(PYTEST)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -rs tests/gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet

check: lint test

fuzz: $(STAMP)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.fuzz

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --quiet

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "ravnest needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@echo "installing ravnest into .venv: this can take several minutes"
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev,docs,transformers]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
