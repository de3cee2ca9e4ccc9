# headgate's workshop. Every target makes or updates .venv by itself; plain `make` lists the targets.
# Settable: PYTHON (which interpreter makes .venv), SOAK_SECONDS, PYTEST_ARGS, BENCH_ARGS, DEMO_ARGS.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON       ?=
SOAK_SECONDS ?= 600
PYTEST_ARGS  ?=
BENCH_ARGS   ?=
DEMO_ARGS    ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.stamp
PEERS := .bench
# pip speaks only of errors (twice quiet), and never asks where there is no terminal.
PIP   := python -m pip --no-color --no-input --disable-pip-version-check -qq

BYTEWAX := bytewax==0.21.*

# Keeps the theme's announcements out of every build's output.
export NO_MKDOCS_2_WARNING := 1

# Each candidate is run, not only looked up: a version manager's stub may exist for a Python that does not.
define FIND_PYTHON
for python in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 python; do \
    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
    then echo "$$python"; exit 0; fi; \
    if [ -n "$(PYTHON)" ]; then break; fi; \
done; \
echo "headgate needs Python 3.11 or later with the venv module, and $(if $(PYTHON),$(PYTHON) is not that,none was found)." >&2; \
echo "Install one (Debian, Ubuntu: apt install python3.11-venv), or name one: make setup PYTHON=/path/to/python3.11" >&2; \
exit 1
endef

.PHONY: help setup demo test lint docs screenshots bench bench-peers soak lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make or update .venv with everything the other targets need
	@echo "setup: .venv is up to date"

$(STAMP): pyproject.toml requirements.lock
	@echo "setting up .venv (once; a minute or two) ..." >&2
	@if ! [ -x $(BIN)/python ] || \
	    ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python=$$($(FIND_PYTHON)) && rm -rf $(VENV) && "$$python" -m venv $(VENV); \
	fi
	@$(BIN)/$(PIP) install --editable '.[dev]' --constraint requirements.lock
	@touch $@
	@echo "setting up .venv: done" >&2

demo: $(STAMP) ## see pipelines run on Spark, and back pressure at work (DEMO_ARGS="--seconds 5 --local")
	@$(BIN)/headgate demo $(DEMO_ARGS)

# One recipe after another, whatever -j says, so that pytest's closing line is the last one. Only tests that are marked
# `timing` may run twice (tests/timing.py); the closing summary shows each with its first failure.
test: $(STAMP) ## everything that must pass: lint, docs, all tests but the soak
	@$(MAKE) lint
	@$(MAKE) docs
	@$(BIN)/python -m pytest -m "not soak" -n logical --maxprocesses 4 $(PYTEST_ARGS)

lint: $(STAMP) ## ruff (rules and format), mypy --strict on src, import contracts
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@log=$$($(BIN)/lint-imports --no-logo 2>&1) || { printf '%s\n' "$$log"; exit 1; }
	@echo "lint: ruff, mypy and import contracts hold"

# Not --quiet: it hides the warnings from --strict too.
docs: $(STAMP) ## build the documentation into site/, a warning being an error
	@log=$$($(BIN)/mkdocs build --strict 2>&1) || { printf '%s\n' "$$log"; exit 1; }
	@echo "docs: site/index.html"

screenshots: $(STAMP) ## take the pictures of the page that the README shows
	@$(BIN)/python tools/screenshots.py

bench: $(STAMP) ## measure the exchange and whole pipelines (BENCH_ARGS="--quick --check")
	@$(BIN)/headgate bench local $(BENCH_ARGS)
	@$(BIN)/headgate bench wire $(BENCH_ARGS)
	@$(BIN)/headgate bench pipeline $(BENCH_ARGS)
	@$(BIN)/headgate bench meters $(BENCH_ARGS)
	@$(BIN)/headgate bench batch $(BENCH_ARGS)

# Each peer in an environment of its own. Bytewax is made for Python 3.12 at most.
bench-peers: $(PEERS)/bytewax/.stamp ## install what pipelines are measured beside, below .bench/
	@echo "bench-peers: Bytewax is in $(PEERS)/bytewax"

$(PEERS)/bytewax/.stamp: | $(STAMP)
	@echo "setting up $(PEERS)/bytewax (once) ..." >&2
	@for python in $(BIN)/python python3.12 python3.11; do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info >= (3, 13))' >/dev/null 2>&1; then \
	        rm -rf $(@D) && "$$python" -m venv $(@D) && $(@D)/bin/$(PIP) install '$(BYTEWAX)' && touch $@; exit; fi; \
	done; echo "Bytewax needs Python 3.12 or 3.11, and none was found." >&2; exit 1

# pytest leaves with 5 when it selected no test; that is no failure here.
soak: $(STAMP) ## run the long tests for SOAK_SECONDS (default 600)
	@SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak \
	    -o timeout=$$(( $(SOAK_SECONDS) * 2 + 300 )) $(PYTEST_ARGS) || [ $$? -eq 5 ]

# Made in an environment of its own, so that nothing left over in .venv gets pinned.
lock: ## pin anew, in requirements.lock, the newest versions that pyproject.toml allows
	@echo "resolving requirements.lock in a fresh environment ..." >&2
	@set -e; python=$$($(FIND_PYTHON)); scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	"$$python" -m venv "$$scratch/venv"; \
	"$$scratch"/venv/bin/$(PIP) install --editable '.[dev]'; \
	{ echo '# What `make` installs, exactly. Written by `make lock`: do not edit by hand.'; \
	  "$$scratch"/venv/bin/$(PIP) freeze --exclude-editable 2>/dev/null \
	    | grep -E '^[A-Za-z0-9._-]+==' | LC_ALL=C sort -f; } > "$$scratch/lock"; \
	cp "$$scratch/lock" requirements.lock
	@echo "requirements.lock: $$(grep -c == requirements.lock) pins" >&2

clean: ## remove .venv, .bench, site/, builds and caches
	@rm -rf $(VENV) $(PEERS) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
