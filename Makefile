# The two commands: `make demo` and `make test`. Both work from a bare clone with Python 3.11+ and make.
BIN := .venv/bin
WEB := $(shell find web -type f -not -path "*/node_modules/*" -not -path "web/build/*" -not -path "web/.node/*" -not -name "*.pyc")
BUILD_INPUTS := pyproject.toml hatch_build.py $(wildcard src/dgpu/wire/proto/*.proto) $(WEB)
# One worker more than cores, at most four: half of the time, tests wait for processes that start or end.
WORKERS := $(shell cores=$$(nproc) && echo $$((cores < 3 ? cores + 1 : 4)))
# Whole modules go to one worker: what they start is started once.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope

.DEFAULT_GOAL := help
.PHONY: help demo test packages setup core check bench up web dist advisories format clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: setup ## starts a scheduler and simulated nodes, runs a mixed workload, shows what happened
	@$(BIN)/dgpu demo

test: packages ## installs what the tests need and runs all of them
	@$(BIN)/python compile_core.py
	$(PYTEST)

packages: .venv/dev.stamp ## installs Debian packages that some tests use, as root
	@scripts/test-packages

setup: .venv/run.stamp ## makes .venv with dgpu in .venv/bin

# Nothing but `test` and `bench` waits for a compiler: starting soon matters more.
core: .venv/dev.stamp ## compiles the core: decisions take half the time; needs a C compiler
	@$(BIN)/python compile_core.py

# The core interpreted here and compiled in `make test`: CI runs both, and both forms are tested.
check: .venv/dev.stamp ## formatting, lint, types, layering, tests of the core
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python web/bundle.py types
	DGPU_INTERPRETED=1 $(PYTEST) -q -m "not slow" tests/unit/core tests/unit/test_*.py tests/golden

bench: core ## measures; one JSON line per figure on stdout, a table on stderr
	@$(BIN)/python benchmarks/run.py $(ONLY)

up: setup ## scheduler and agent for this machine
	@$(BIN)/dgpu up

web: setup ## builds the dashboard, or says why it cannot be built
	@$(BIN)/python web/bundle.py

dist: .venv/dev.stamp ## builds a release: wheel, source archive, and the list of its packages (SBOM)
	@rm -rf dist
	@$(BIN)/python -m hatchling build
	@scripts/sbom dist/dgpu.cdx.json
	@ls -1 dist

advisories: .venv/dev.stamp ## looks for known weaknesses in the locked packages
	@scripts/advisories

format: .venv/dev.stamp ## formats the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## removes what make made
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis build web/node_modules web/build web/.node src/dgpu/web_assets src/dgpu/_compiled* src/dgpu/_native

.venv/run.stamp: requirements/run.lock $(BUILD_INPUTS)
	@scripts/venv requirements/run.lock
	@$(BIN)/python web/bundle.py note
	@touch $@

# dev.lock holds all of run.lock in the same versions.
.venv/dev.stamp: requirements/dev.lock requirements/run.lock $(BUILD_INPUTS)
	@scripts/venv requirements/dev.lock
	@$(BIN)/python web/bundle.py note
	@touch $@ .venv/run.stamp
