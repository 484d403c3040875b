# Each target sets up what it needs in .venv; nothing but Python 3.11+ and make is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# pytest's arguments, for example: make test ARGS=tests/selection, ARGS="-k near_miss"
ARGS ?=
# Processes that run the tests, a file each at a time, 0 for this one alone: a test is mostly one thread of a compiler or
# of Python, and the tests of a file share programs and fixtures. One more than two cores: some tests wait, for a child or
# for seconds; such files took 64 s by three processes and 73 s by two.
N ?= 3
# Each worker and each of the hundreds of processes that tests start would compile this package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint bench docs dist clean
.NOTPARALLEL:

demo: $(VENV)/.demo
	$(BIN)/python examples/classify.py

# What failed beside others runs once more, alone and named: a bound on memory or an order of threads can be missed on a
# busy machine. What fails twice has failed.
test: $(VENV)/$(if $(PEERS),.peers,.test)
	$(BIN)/python -m pytest -n $(N) --dist loadfile $(ARGS) || \
	{ [ $$? -eq 1 ] && $(BIN)/python -m pytest $(ARGS) --last-failed --last-failed-no-failures none -rfE; }

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.peers
	$(BIN)/python -m bench overhead
	$(BIN)/python -m bench layers --net cpu10 --against torch

# The site of docs/ with a reference from the docstrings, in build/site; a broken link ends it. Needs no network once
# its packages are there.
docs: $(VENV)/.docs
	$(BIN)/python -m bench.results --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo build/site/index.html

# What a package index takes, in dist: an sdist, a wheel for every machine (built apart, where no PyTorch is), and one
# for Linux with the native call path, whose libraries are PyTorch's own.
dist: $(VENV)/.dist
	rm -rf dist build/wheel
	$(BIN)/python -m build
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel
	for wheel in build/wheel/*-linux_*.whl; do \
	  test ! -e "$$wheel" || PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir dist "$$wheel" || exit 1; \
	done
	$(BIN)/python -m twine check --strict dist/*

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# What each target needs of pyproject.toml's extras, laid by one run of pip, and anew when the dependencies change.
$(VENV)/.demo: EXTRAS := cpu,demo
$(VENV)/.test: EXTRAS := cpu,pocl,demo,test
$(VENV)/.peers: EXTRAS := cpu,pocl,demo,test,peers
$(VENV)/.docs: EXTRAS := cpu,docs
$(VENV)/.dev: EXTRAS := cpu,pocl,demo,test,dev
$(VENV)/.dist: EXTRAS := cpu,torch,dist

# The compiled module is built once PyTorch is there, and anew when its sources change: an older one lacks what tests look
# for. pip builds the package before it installs PyTorch, so that it cannot build the module in a fresh environment.
NATIVE := $(wildcard convdispatch/device/native/*.cpp convdispatch/device/native/*.c convdispatch/device/native/*.h)

# pip would compile on one core, tests of libraries included. One file or another is for a later Python: it stays as it is.
$(VENV)/.demo $(VENV)/.test $(VENV)/.peers $(VENV)/.docs $(VENV)/.dev $(VENV)/.dist: $(VENV)/bin/python pyproject.toml $(NATIVE)
	$(PIP) --no-compile --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m convdispatch.device.native.build || true
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib convdispatch plugins || true
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
