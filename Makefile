# Each target sets up what it needs in .venv; nothing but Python 3.11+ and make is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# pytest's arguments, for example: make test ARGS="-m selection" (a zone: tests/zones.py), ARGS="-k near_miss"
ARGS ?=
# Processes that run the tests, a file each at a time, 0 for this one alone: a test is mostly one thread of a compiler or
# of Python, and the tests of a file share programs and fixtures. One more than two cores: some tests wait, for a child or
# for seconds; such files took 64 s by three processes and 73 s by two.
N ?= 3

.PHONY: demo test lint bench docs clean

demo: $(VENV)/.demo
	$(BIN)/convdispatch classify

test: $(VENV)/.test $(if $(PEERS),$(VENV)/.peers)
	$(BIN)/python -m pytest -n $(N) --dist loadfile $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.peers
	$(BIN)/python bench/gemm.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/layers.py --net cpu10 --against torch

# The site of docs/ with a reference from the docstrings, in build/site; a broken link ends it. Needs no network once
# its packages are there.
docs: $(VENV)/.docs
	$(BIN)/python bench/results.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo build/site/index.html

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp an extra; each is laid anew when the dependencies change.
$(VENV)/.base: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.[cpu]'
	touch $@

$(VENV)/.demo: $(VENV)/.base
	$(PIP) --editable '.[cpu,demo]'
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) --editable '.[cpu,pocl,demo,test]'
	touch $@

$(VENV)/.peers: $(VENV)/.test
	$(PIP) --editable '.[peers]'
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) --editable '.[cpu,docs]'
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
