# Attention Lab. `make help` lists what there is to say.
#
# Every target sets up what it needs. A stamp file in .venv remembers what was installed, so that only
# the first start is slow. PYTHON=/path/to/python3.12 chooses an interpreter.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed

# `site/` is a source folder, so both roots are on the path (see ARCHITECTURE.md).
export PYTHONPATH := $(CURDIR):$(CURDIR)/site
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

say = printf '%s\n' "==> $(1)" >&2

.PHONY: help run test test-quick lint format compiled bench gpu-check token lock clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUNTIME) ## The whole product at http://127.0.0.1:8000 (PORT and ATTENTION_LAB_DATA_DIR override)
	@exec $(PY) -m config.embedded

test: $(DEV) ## Every test: SQLite and PostgreSQL, real workers, a real browser
	@sh tests/support/system.sh chromium curl postgresql redis-server
	@$(if $(ARGS),$(PY) -m pytest $(ARGS),sh tests/support/suite.sh $(PY))

test-quick: $(DEV) ## The tests that need no browser, no killed process and no second database
	@$(PY) -m pytest -n logical -m 'not slow' $(ARGS)

lint: $(DEV) ## Style, types, import floors, templates, migrations, the OpenAPI document, the lock
	@sh tests/support/lint.sh $(VENV)/bin

format: $(DEV) ## Rewrite the Python code in the project's style
	@$(VENV)/bin/ruff check --fix . && $(VENV)/bin/ruff format .

compiled: $(DEV) ## After a kernel was edited: compile them all, for kernels/tuned.csv and docs/compiled.md
	@nice $(PY) -m tests.support.tune $(ARGS)
	@nice $(PY) -m tests.support.compiled

bench: $(DEV) ## The speed figures (quiet machine, please)
	@$(PY) -m pytest tests/benchmarks -s --override-ini python_files='bench_*.py' $(ARGS)

gpu-check: $(DEV) ## On a machine with an NVIDIA GPU: every engine against float64, then its speed (minutes)
	@$(PY) -m tests.gpu.check
	@$(PY) -m tests.benchmarks.gpu

token: $(RUNTIME) ## A new API token, as the last line: make -s token NAME=alice
	@test -n "$(NAME)" || { echo 'Say whose token it is: make -s token NAME=alice' >&2; exit 2; }
	@$(PY) manage.py migrate --no-input --verbosity 0
	@$(PY) manage.py token "$(NAME)"

lock: $(DEV) ## Write requirements.lock and requirements-dev.lock anew from pyproject.toml
	@$(PY) -m tests.support.lock write

clean: ## Remove what can be made again (.venv, static files, caches); data in var/ stays
	rm -rf $(VENV) static-built .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@sh tests/support/venv.sh "$(VENV)"

# torch goes first and alone: exactly pinned, so that nothing else can ask for another one.
$(RUNTIME): requirements.lock | $(PY)
	@$(call say,Installing PyTorch (large: a few minutes the first time))
	@$(PY) -m pip install -qq $$(grep -o '^torch==[0-9.]*' requirements.lock)
	@$(call say,Installing the other packages)
	@$(PY) -m pip install -qq -r requirements.lock
	@touch $@

$(DEV): requirements-dev.lock $(RUNTIME) | $(PY)
	@$(call say,Installing the development tools)
	@$(PY) -m pip install -qq -r requirements-dev.lock
	@touch $@
