# Two commands matter: `make audit` and `make test`.  Each sets itself up in .venv, and again when pyproject.toml changes.
PYTHON ?= python3
GPU ?= h200
CASES ?= sdpa:A sdpa:B sdpa:C sdpa:D
WORKERS ?= 2

BIN := .venv/bin
# A BLAS that starts a thread a core in each of several processes slows all of them down.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: audit test parity setup lint goldens clean

audit: .venv/.set-up-lower
	$(BIN)/theodolite audit $(CASES) --gpu $(GPU)

setup: .venv/.set-up-lower

test: lint
	$(BIN)/pytest -n $(WORKERS)

lint: .venv/.set-up-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

goldens: .venv/.set-up-test
	$(BIN)/pytest -n $(WORKERS) --update-goldens

clean:
	rm -rf .venv .venv-parity build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# One stamp an extra: touched last, so that an interrupted set-up is done again.
.venv/.set-up-%: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON) here; name one of 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $$($(PYTHON) --version) is too old; name one of 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@echo "setting up .venv with theodolite[$*] (a minute or two, once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# The parity lane holds our count against the real AccelForge, which needs Python 3.12 and other versions of NumPy, hence
# an environment of its own.  Costing a mapping needs no graphviz; only its mapper does.
PARITY_PYTHON ?= python3.12

parity: .venv-parity/.set-up
	.venv-parity/bin/python -m pytest -p no:cacheprovider tests/parity

.venv-parity/.set-up: pyproject.toml
	@$(PARITY_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
	  { echo "error: AccelForge needs Python 3.12 or newer: make parity PARITY_PYTHON=..." >&2; exit 1; }
	$(PARITY_PYTHON) -m venv .venv-parity
	.venv-parity/bin/pip install --quiet --disable-pip-version-check accelforge==1.0.467 'pytest>=8' 'hypothesis>=6.100' --editable .
	@touch $@
