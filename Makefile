# `make` lists what there is. Needs python3 (3.11 or newer), Node (18 or newer) and make; everything else is
# fetched at the locked versions on first use, into this folder only.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# The steps of `make test` print one after the other, and share two cores.
.NOTPARALLEL:

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
BENCH := PYTHONPATH=.:lambdas:layers/core/python $(BIN)/python -m
PORT ?= 4566
export PORT

TOOLS := .venv/.ready
ENGINE := .engine/venv/.ready
CDK := node_modules/.ready
COMPARED := .engine/compare/.ready
PRICES := .engine/prices/.ready
ALL := $(TOOLS) $(ENGINE) $(CDK)

.PHONY: help
help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: run
run: $(ALL)  ## run the product on this machine until Ctrl-C; PORT=4566
	@$(BIN)/python -m local.run

.PHONY: test
test: lint unit simulation hostile infrastructure integration e2e reference-where-available  ## everything that must pass
	@echo "make test: all passed"

.PHONY: lint
lint: $(TOOLS)  ## format, lint, layering, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=.:lambdas:layers/core/python $(BIN)/lint-imports
	$(BIN)/mypy

.PHONY: unit
unit: $(TOOLS)  ## unit tests; every branch of the core and of the request builders
	$(PYTEST) tests/unit -n $(WORKERS) --cov --cov-branch --cov-report=
	$(BIN)/coverage report --include='*/sluice/core/*,*/sluice/repository/writes.py,*/sluice/repository/resharding.py,*/sluice/repository/expressions.py,*/sluice/repository/snapshots.py,*/sluice/repository/counters.py,*/sluice/repository/totals.py,*/sluice/repository/ledgers.py,*/sluice/repository/ledger_items.py' --fail-under=100 --show-missing

.PHONY: simulation
simulation: $(TOOLS)  ## the services on a simulated table, under faults; SLUICE_SIMULATION_SEEDS, SLUICE_DELIVERIES
	$(PYTEST) tests/simulation -n $(WORKERS) --dist worksteal

.PHONY: hostile
hostile: $(TOOLS)  ## generated requests along the API's links, damaged bytes, hostile ids; SLUICE_FUZZ_REQUESTS
	$(PYTEST) tests/hostile -n $(WORKERS) --dist worksteal

.PHONY: soak
soak: $(TOOLS) $(ENGINE)  ## twenty times as much of everything that is random, and other seeds than those of make test: hours
	$(PYTEST) tests/unit -n $(WORKERS) --hypothesis-profile=soak
	SLUICE_SIMULATION_SEEDS=400000 SLUICE_SIMULATION_FIRST=100000 SLUICE_MODEL_EXAMPLES=2400 \
	  SLUICE_DELIVERIES=10000000 SLUICE_DELIVERIES_FIRST=1000 \
	  $(PYTEST) tests/simulation -n $(WORKERS) --dist worksteal
	SLUICE_FUZZ_REQUESTS=200000 SLUICE_FUZZ_SEED=2 $(PYTEST) tests/hostile -n $(WORKERS) --dist worksteal
	SLUICE_CONFORMANCE_SEQUENCES=100000 SLUICE_CONFORMANCE_FIRST=100000 SLUICE_FAULTS=100000 SLUICE_FAULTS_SEED=2 \
	  SLUICE_KILLS=1000 $(PYTEST) tests/integration -n $(WORKERS)

.PHONY: infrastructure
infrastructure: $(TOOLS) $(CDK)  ## tests of the templates
	$(PYTEST) tests/infrastructure

.PHONY: integration
integration: $(TOOLS) $(ENGINE)  ## services on the local engine's DynamoDB
	$(PYTEST) tests/integration -n $(WORKERS)

.PHONY: e2e
e2e: $(ALL)  ## the deployed stacks over HTTP, and make run itself
	$(PYTEST) tests/e2e

# What every `make test` runs there as well: where the engines may differ, and what costs and races depend on.
REFERENCE_SHARE := $(addprefix tests/integration/test_,$(addsuffix .py,acquire chains changed_limits concurrency costs \
  idempotency leases lease_costs metering_faults removal shards shard_holes store)) tests/e2e/test_engines.py
REFERENCE := tests/integration tests/e2e/test_engines.py

.PHONY: test-reference
test-reference: $(TOOLS) reference-engine  ## the integration tests on AWS's DynamoDB Local
	SLUICE_TEST_ENGINE=reference $(PYTEST) $(REFERENCE) -n $(WORKERS)

.PHONY: docs
docs: $(TOOLS)  ## write the API reference from the routes
	@PYTHONPATH=.:lambdas:layers/core/python $(BIN)/python -m local.api_reference

.PHONY: costs
costs: $(TOOLS) $(ENGINE)  ## calls and capacity units of each operation
	@$(BENCH) bench.costs

.PHONY: aggregator-costs
aggregator-costs: $(TOOLS) $(ENGINE)  ## units written and CPU spent to count 1,000 acquires
	@$(BENCH) bench.aggregator

.PHONY: metering-costs
metering-costs: $(TOOLS) $(ENGINE)  ## units per counted call, rollup and selection, beside the seed's design
	@$(BENCH) bench.seed_metering

.PHONY: hot-ledger
hot-ledger: $(TOOLS) $(ENGINE)  ## holds per second on one ledger, and what they had to try again
	@$(BENCH) bench.hot_ledger

.PHONY: mutants
mutants: $(TOOLS)  ## closed holes opened again, and the seed at which the simulation notices each
	@$(BIN)/python -m tests.simulation.mutants

.PHONY: cpu
cpu: $(TOOLS) $(ENGINE)  ## client CPU of a warm acquire beside the bare boto3 call
	@$(BENCH) bench.cpu

.PHONY: cold
cold: $(TOOLS)  ## CPU of a cold start of the data plane
	@$(BENCH) bench.cold

.PHONY: compare
compare: $(TOOLS) $(ENGINE) $(COMPARED)  ## side by side with zae-limiter, into docs/benchmarks.md; QUICK=--quick only prints
	@$(BENCH) bench.compare $(QUICK)

.PHONY: price-book
price-book: $(TOOLS) $(PRICES)  ## the shipped prices and docs/price-book.md from the pinned tables; DAY=yyyy-mm-dd, CHECK=--check
	@.engine/prices/bin/python -m tools.price_book .engine/prices/wheels $(if $(DAY),--day $(DAY)) $(CHECK)

.PHONY: rotate-secret
rotate-secret: $(TOOLS)  ## give a secret in AWS a new key without downtime; SECRET=arn, FORCE=--force
	@test -n "$(SECRET)" || { echo "error: SECRET=arn is missing; the outputs of the data stack name the ARNs" >&2; exit 1; }
	@$(BIN)/python -m tools.rotate_secret "$(SECRET)" $(FORCE)

.PHONY: redrive
redrive: $(TOOLS)  ## give a function of the stream what it gave up on; QUEUE=url of its failure queue, or FILE=message.json
	@test -n "$(QUEUE)$(FILE)" || { echo "error: QUEUE=url or FILE=path is missing; the outputs of the streams stack name the queues" >&2; exit 1; }
	@$(BIN)/python -m local.redrive $(if $(QUEUE),--queue "$(QUEUE)",--file "$(FILE)")

.PHONY: reference-engine
reference-engine: $(TOOLS)  ## fetch DynamoDB Local, where Maven and a Java kit are at hand
	@$(BIN)/python -m local.reference fetch

.PHONY: reference-where-available
reference-where-available: $(TOOLS)
	@said="$$($(BIN)/python -m local.reference fetch)"; \
	if $(BIN)/python -m local.reference available; then $(MAKE) test-reference REFERENCE="$(REFERENCE_SHARE)"; \
	else echo "skipped: integration tests on the reference engine. $$said"; fi

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-find-links --no-header

.PHONY: lock
lock: $(TOOLS)  ## recompile every requirements file; UPGRADE=--upgrade takes newer versions
	$(COMPILE) $(UPGRADE) layers/vendor/requirements.in -o layers/vendor/requirements.txt
	$(COMPILE) $(UPGRADE) requirements.in -o requirements.txt
	$(COMPILE) $(UPGRADE) requirements-dev.in -o requirements-dev.txt
	$(COMPILE) $(UPGRADE) local/requirements.in -o local/requirements.txt
	$(COMPILE) $(UPGRADE) bench/requirements.in -o bench/requirements.txt
	$(COMPILE) $(UPGRADE) --no-deps tools/price_book/wheels.in -o tools/price_book/wheels.txt
	$(COMPILE) $(UPGRADE) tools/price_book/requirements.in -o tools/price_book/requirements.txt
	grep '^uv==' requirements.in | $(COMPILE) --no-annotate - -o requirements-bootstrap.txt

.PHONY: clean
clean:  ## back to a fresh clone
	rm -rf .venv .engine node_modules .cache .local cdk.out* layers/vendor/build
	rm -rf .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What follows sets the tools up. A stamp is newer than its inputs when there is nothing to do.

.venv/bin/uv: requirements-bootstrap.txt | check-python
	@echo "setting up the tools in .venv"
	@python3 -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bootstrap.txt
	@touch $@

$(TOOLS): requirements-dev.txt .venv/bin/uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.txt
	@touch $@

$(ENGINE): local/requirements.txt .venv/bin/uv
	@echo "setting up the local engine in .engine"
	@test -x .engine/venv/bin/python || python3 -m venv --without-pip .engine/venv
	@$(BIN)/uv pip install --quiet --python .engine/venv/bin/python --require-hashes -r local/requirements.txt
	@touch $@

$(COMPARED): bench/requirements.txt .venv/bin/uv
	@echo "setting up zae-limiter in .engine/compare"
	@test -x .engine/compare/bin/python || python3 -m venv --without-pip .engine/compare
	@$(BIN)/uv pip install --quiet --python .engine/compare/bin/python --require-hashes -r bench/requirements.txt
	@touch $@

# One wheel of each, whatever this machine is, so that every machine finds the same checksums.
$(PRICES): tools/price_book/requirements.txt tools/price_book/wheels.txt .venv/bin/uv
	@echo "fetching the price tables into .engine/prices"
	@test -x .engine/prices/bin/python || python3 -m venv --without-pip .engine/prices
	@$(BIN)/uv pip install --quiet --python .engine/prices/bin/python --require-hashes -r tools/price_book/requirements.txt
	@rm -rf .engine/prices/wheels
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
	  --platform manylinux_2_28_x86_64 --implementation cp --python-version 3.11 --abi abi3 --abi none \
	  -r tools/price_book/wheels.txt -d .engine/prices/wheels
	@touch $@

$(CDK): package.json package-lock.json | check-node
	@echo "setting up the CDK command line in node_modules"
	@npm ci --no-audit --no-fund --loglevel=error
	@touch $@

.PHONY: check-python
check-python:
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: python3 is missing or older than 3.11; install Python 3.11 or newer" >&2; exit 1; }

.PHONY: check-node
check-node:
	@node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null || \
	  { echo "error: node is missing or older than 18; install Node 18 or newer" >&2; exit 1; }
	@npm --version >/dev/null 2>&1 || { echo "error: npm is missing; it comes with Node" >&2; exit 1; }
