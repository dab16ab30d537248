# Every target works alone on a fresh clone: it makes $(VENV) from $(PYTHON) and installs what it needs.
#
#   make demo      train a GAT with SAR on 4 emulated devices on a generated graph
#   make test      the suite's tiers host and core, see tests/tiers.py
#   make test-all  adds the slow tier: two to three hours on two cores
#   make bench     list the benchmark programs, each with the command that runs it, such as
#                  .venv/bin/python -m benchmarks.cpu --quick
#   make lint      ruff, pyright and the import contract
#   make clean     remove the environment and the caches

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
PYTEST_ARGS ?=
# A wheel of this checkout, which is installed in place of the checkout itself.
WHEEL ?=

BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

.PHONY: demo test test-all bench lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/jaxgraph train --dataset sbm --num-nodes 2000 \
	    --model gat --hidden 8 --heads 4 --layers 2 \
	    --parts 4 --mode sar --partitioner metis --epochs 100 --seed 0

test: $(VENV)/.installed-test
	$(PYTEST) --tier core

test-all: $(VENV)/.installed-test
	$(PYTEST) --tier all

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks
	@echo "Run one with $(BIN)/python, e.g. $(BIN)/python -m benchmarks.cpu --quick"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .import_linter_cache

# Made only after pip has run in it, so that an interrupted creation is not taken for an environment.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    "jaxgraph needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + \
	    ": name another one, e.g. make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# What an installation is made of: the kernels are compiled by it.
BUILT_FROM := pyproject.toml setup.py $(wildcard jaxgraph/ops/cpu/source/*)

# A stamp for each set of extras; what it was built from, changed, installs again.
INSTALL := $(BIN)/python -m pip install --quiet $(if $(WHEEL),,--editable)
SOURCE := $(or $(WHEEL),.)

$(VENV)/.installed: $(BUILT_FROM) $(VENV)/.created
	$(INSTALL) $(SOURCE)
	@touch $@

$(VENV)/.installed-%: $(BUILT_FROM) $(VENV)/.created
	$(INSTALL) '$(SOURCE)[$*]'
	@touch $@ $(VENV)/.installed
