# Every target makes its own environment; all that is needed beforehand is Python 3.11 or newer and make.
#   make test    run the tests             make demo   sample real posteriors, with pictures
#   make lint    style, types, layering    make bench  run the benchmarks and keep the results
#   make docs    build the documentation   make bench-report  tables and plots from the results

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
DOCS := $(VENV)/.installed-docs
WORKERS ?= 2
EXAMPLES := $(sort $(wildcard examples/*.py))

.PHONY: test demo lint format bench bench-report docs clean
.DEFAULT_GOAL := test

test: $(DEV)
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# Pictures go to files: a machine without a display runs the examples as well.
demo: $(DEV)
	@test -n "$(EXAMPLES)" || { echo "no examples to run"; exit 1; }
	@set -e; for example in $(EXAMPLES); do \
		echo "== $$example"; MPLBACKEND=$${MPLBACKEND:-Agg} $(BIN)/python $$example; done

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH)
	$(BIN)/python -m bench run $(BENCH_ARGS)

bench-report: $(BENCH)
	$(BIN)/python -m bench table --fill README.md $(wildcard docs/*.md)
	$(BIN)/python -m bench plots

docs: $(DOCS)
	$(BIN)/python -m mkdocs build --strict

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.x"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "$(PYTHON) cannot make environments (on Debian: python3-venv)"; exit 1; }

# The stamps are older than pyproject.toml after its dependencies change, and then installed again.
$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(BENCH): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

$(DOCS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis
