# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
# Variables: PYTHON (the interpreter of a new .venv), WORKERS (test processes), ARGS (more arguments for pytest
# or the benchmark), as in `PYTHON=python3.12 make test` or `make test ARGS="-k anderson"`.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One thread a process: the tests are small, and the workers already fill the cores. Each begins with half of the tests,
# so that modules make what they share once, and takes over what the other has left at the end.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install demo test slow torture mutants lint format integrations gallery results docs release bench clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## Make .venv with the pinned dependencies and steadeq in editable mode

demo: $(VENV)/.demo-installed  ## Iterate a block longer than trained, with and without the penalty, and write a report (2 minutes)
	$(BIN)/steadeq demo $(ARGS)

test: $(VENV)/.installed  ## Run the tests and the doctests, without the slow ones (about 6 minutes on two cores)
	$(PYTEST) $(ARGS)

slow: $(VENV)/.installed  ## Run only the slow tests
	$(PYTEST) -m slow $(ARGS)

torture: $(VENV)/.installed  ## Attack runs, commands and readers with thousands of random tries (up to 40 minutes)
	PYTHONPATH=$(CURDIR)/tests OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m torture --workers $(WORKERS) $(ARGS)

mutants: $(VENV)/.installed  ## Put in faults of one line, and see which tests notice each
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m torture.mutants --workers $(WORKERS) $(ARGS)

lint: $(VENV)/.installed  ## Check format, style, layers and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed  ## Format the code and fix what can be fixed safely
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

integrations: $(VENV)/.integrations-installed  ## Install the libraries that there are bridges to, and test the bridges (large)
	$(PYTEST) tests/integrations $(ARGS)

gallery: $(VENV)/.gallery-installed  ## Run the notebooks of the gallery (up to 20 minutes); ARGS names some of them
	OMP_NUM_THREADS=1 $(BIN)/python docs/gallery/build.py $(ARGS)

results: $(VENV)/.installed  ## Judge the numbers in results/ anew, and write the pages of the results from them
	$(BIN)/steadeq reproduce all --judge-only
	$(BIN)/steadeq reproduce all --scale day --judge-only

docs: $(VENV)/.docs-installed  ## Build the documentation site in build/site; any warning or broken link is an error
	$(BIN)/python docs/site/build.py

release: $(VENV)/.release-installed  ## Build the distributions and check them, up to the upload
	$(BIN)/python packaging/release.py

bench: $(VENV)/.bench-installed  ## Measure the overhead of the library next to its peers
	$(BIN)/python benchmarks/overhead.py $(ARGS)

clean:  ## Remove .venv, caches and build products
	rm -rf $(VENV) build dist .ruff_cache .import_linter_cache .pytest_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# torch goes first and alone: any build of the pinned version (CPU or CUDA) that pip is configured to find is kept
# by the steps that follow.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("steadeq needs Python 3.10 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

# What the command line needs, and no tools of developers.
$(VENV)/.demo-installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("steadeq needs Python 3.10 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[train]'
	@touch $@

# An extra beside those of developers: bench, docs, gallery, integrations, release.
$(VENV)/.%-installed: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[$*]'
	@touch $@
