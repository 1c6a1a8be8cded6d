# Two commands matter: `make audit` and `make test`.  Each sets itself up in .venv, and again when pyproject.toml changes.
PYTHON ?= python3
GPU ?= h200
CASES ?= sdpa:A sdpa:B sdpa:C sdpa:D
WORKERS ?= 2

BIN := .venv/bin
# A BLAS that starts a thread a core in each of several processes slows all of them down.
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: audit test setup lint goldens clean

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
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# One stamp an extra: touched last, so that an interrupted set-up is done again.
.venv/.set-up-%: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON) here; name one of 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $$($(PYTHON) --version) is too old; name one of 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@echo "setting up .venv with theodolite[$*] (a minute or two, once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
