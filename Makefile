# `make demo` and `make test` work as the first command on a machine with Python 3.11+, make and git.
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
PYTHON ?= python3
RUN := $(UV) run --frozen --no-sync

.DEFAULT_GOAL := help
.PHONY: help docs results schemas bench install demo test test-slow lint format types clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check uv

.venv/.installed: pyproject.toml uv.lock | $(filter .uv/bin/uv,$(UV))
	$(UV) sync --frozen --compile-bytecode
	@touch $@

docs: install ## The API pages from the docstrings, then the site in site/
	$(RUN) python scripts/api_pages.py
	$(RUN) zensical build --strict

results: install ## Tables, figures and verdicts of docs/, and their notebook, from the runs in results/
	$(RUN) python scripts/results.py
	$(RUN) python scripts/notebooks.py results

schemas: install ## JSON schemas of configs/ for editors, from constructors' types and docstrings
	$(RUN) python -m fedfeat.commands.schemas --out configs/.schemas --vscode

bench: install ## Ratios to loops by hand, a line per workload in results/bench.jsonl (under 5 minutes)
	OMP_NUM_THREADS=1 $(RUN) python scripts/bench.py

install: .venv/.installed ## Install everything that uv.lock pins into .venv

demo: install ## Five methods on real digits on one page: curves, split, alignment (about a minute on 2 cores)
	$(RUN) python scripts/demo.py

# Tests of one file stay in one process, for fixtures that take minutes are made once a file.
PYTEST := OMP_NUM_THREADS=1 $(RUN) pytest --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 20
MARK ?= not slow
WORKERS ?= auto
SLOW_UNTIL ?= inf

test: install lint types ## Lint, types, tests but for the slow ones (MARK=: all)
	$(PYTEST) -n $(WORKERS) -m "$(MARK)" --slow-until $(SLOW_UNTIL)

# Three workers, for on two cores tests that wait for a cluster or a kill leave one idle.
test-slow: install ## The slow tests: kills, clusters, presets, notebooks, use from outside
	$(PYTEST) -n 3 -m slow

lint: install ## Check style and the layers of the package
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) lint-imports --no-logo

format: install ## Rewrite to the project's style
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

types: install ## Check types
	$(RUN) mypy

clean: ## Remove caches; never touches logs/
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
