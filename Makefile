# On a machine with Python 3.11 or newer (with venv) and make, each target does all its own set-up: `make run`, `make test`.
# Everything lands in .venv beside this file, and paths are relative, so that a clone may lie anywhere.

PYTHON ?= python3
UV_VERSION := 0.13.9
BIN := .venv/bin
STAMP := .venv/.set-up
# Everything but what four targets alone need, and fetch for themselves: a site builder, a compiler of protobuf, a fuzzer, checks of packages.
SETTLED := --all-extras --all-groups --no-group docs --no-group proto --no-group fuzz --no-group release
# tests/spread.py puts tests into groups, and the groups in order.
SPREAD := --dist loadscope --no-loadscope-reorder
# These tests compute: one worker for each core.
COMPUTING := -m "not integration" -n auto $(SPREAD)
# Tracing slows these tests down two- to threefold, and the unit tests cover the same code.
UNTRACED := tests/house tests/mutants tests/property tests/simulation
# The stories and the unit tests of what decides.
DECIDING := tests/scenarios $(addprefix tests/unit/,agent balancing core shedder)
# These tests start processes and wait for them. With four at once, or with others beside them, two cores are so busy that clients give up on
# calls that they never should.
WAITING := -m "integration and not soak" -n 3 $(SPREAD)
FAST := EQUIPOISE_TEST_FAST=1 $(BIN)/python -m pytest --quiet -rfE -m "not integration and not slow" -n auto $(SPREAD)
TEST_LOG := $(if $(LOG),EQUIPOISE_TEST_LOG="$(LOG)")

# Where this is set, as in many images, each of the thousands of processes of the tests compiles all modules again: two thirds of its start.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup run kafka kafka-stop test test-fast check fmt bench simulate mutants image soak stress stress-pulsar vectors docs proto page-libraries fuzz release clean

help: ## Say what each target does
	@echo "Equipoise: make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

setup: $(STAMP) ## Make .venv with all that the product, its checks and its tests need

# Only when the lock file or the project file changes.
$(STAMP): pyproject.toml uv.lock
	@echo "== setup: making .venv and installing what uv.lock names (once, and again when it changes)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Equipoise needs Python 3.11 or newer; $(PYTHON) is older or missing. Name another: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
	  || { rm -rf .venv; echo "Python's venv is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never $(BIN)/python -m uv sync --quiet --frozen $(SETTLED) --python $(BIN)/python
	@touch $(STAMP)

run: setup ## Run the demo: a cluster that balances, fails and heals before your eyes: make run [LOG=kafka] [DATA=new folder, to keep its files]
ifeq ($(LOG),kafka)
	@echo "== run: the demo, a local cluster under load, on a real Kafka of this machine, which is killed and comes back"
	@$(BIN)/python -m compose.local_kafka jars # Java then starts Kafka in half the time, also while callers wait.
	@$(BIN)/python -m compose.demo --kafka $(if $(DATA),--data "$(DATA)")
else
	@test -z "$(LOG)" || { echo "there is LOG=kafka; without it the log is a file"; exit 2; }
	@echo "== run: the demo, a local cluster under load"
	@$(BIN)/python -m compose.demo $(if $(DATA),--data "$(DATA)")
endif

kafka: setup ## Start a real Kafka on this machine, without Docker, and print its address: make kafka [NODES=3] [PORT=9092]
	@echo "== kafka: $(or $(NODES),1) node(s), with the jars that Maven fetches once; topics stay in .kafka" >&2
	@$(BIN)/python -m compose.local_kafka start --nodes "$(or $(NODES),1)" --port "$(or $(PORT),9092)"

kafka-stop: setup ## Stop what `make kafka` started
	@echo "== kafka-stop: all nodes" >&2
	@$(BIN)/python -m compose.local_kafka stop

test: check ## Run every check and every test, with branch coverage: make test [LOG=kafka]
	@echo "== test: unit tests, and the branches that they cover"
	@$(TEST_LOG) PYTHONHASHSEED=1 $(BIN)/python -m pytest --quiet $(COMPUTING) $(addprefix --ignore=,$(UNTRACED)) --cov --cov-report=term
	@echo "== test: rules of the house, simulations, and decisions under another PYTHONHASHSEED, since no order of a set may leak into a decision"
	@PYTHONHASHSEED=2 $(BIN)/python -m pytest --quiet $(COMPUTING) $(UNTRACED) $(DECIDING)
	@echo "== test: integration tests, which mostly wait"
	@$(TEST_LOG) PYTHONHASHSEED=1 $(BIN)/python -m pytest --quiet $(WAITING) --durations 20

test-fast: setup ## Run the tests that start no process, with few examples of each property
	@$(FAST)

check: setup ## Check format, lint, types and the arrows between packages
	@echo "== check: ruff (format)"
	@$(BIN)/python -m ruff format --check --quiet
	@echo "== check: ruff (lint)"
	@$(BIN)/python -m ruff check --quiet
	@echo "== check: mypy (strict), and basedpyright (what users see of the types)"
	@$(BIN)/python -m mypy & mypy=$$!; $(BIN)/basedpyright --warnings; users=$$?; wait $$mypy; ours=$$?; exit $$((users || ours))
	@echo "== check: import-linter (arrows)"
	@$(BIN)/lint-imports --no-logo

fmt: setup ## Format the code, and mend what ruff can mend by itself
	@echo "== fmt: ruff"
	@$(BIN)/python -m ruff check --fix --quiet || true
	@$(BIN)/python -m ruff format

bench: setup ## Run one benchmark and print one JSON line: make bench BENCH=name [LOG=kafka]
	@test -n "$(BENCH)" || { echo "which one? make bench BENCH=name"; exit 2; }
	@test -z "$(LOG)" || grep -q report_on_log "tests/benchmarks/$(BENCH).py" || { echo "$(BENCH) has one log: leave LOG out"; exit 2; }
	@echo "== bench: $(BENCH)" >&2
	@$(BIN)/python -m "tests.benchmarks.$(BENCH)" $(if $(LOG),--log "$(LOG)")

simulate: setup ## Replay one simulated run and print its story: make simulate SEED=number
	@case "$(SEED)" in '' | *[!0-9]*) echo "which seed? make simulate SEED=number"; exit 2;; esac
	@echo "== simulate: seed $(SEED)"
	@$(BIN)/python -m tests.simulation --seed "$(SEED)"

mutants: setup ## Apply each mutant of the protocol and print the seed that catches it: make mutants [DIR=folder]
	@echo "== mutants: each patch of $(or $(DIR),tests/mutants) must be caught"
	@$(BIN)/python -m tests.mutants $(if $(DIR),"$(DIR)")

image: ## Build the container image with docker, podman or buildah: make image [BASE=another image of Debian 13]
	@echo "== image: what the brokers need of Debian, and the locked dependencies" >&2
	@sh compose/image.sh "$(BASE)"

soak: setup ## Test with a cluster of real Pulsar, and simulate one seed after another for an hour: make soak [HOURS=1]
	@echo "== soak: tests with real Pulsar, which Maven fetches once (245 MB)"
	@$(BIN)/python -m pytest --quiet -m soak tests/integration
	@echo "== soak: simulating for $(or $(HOURS),1) h"
	@$(BIN)/python -m tests.simulation --soak-hours "$(or $(HOURS),1)"

stress: setup ## Move, kill, stop and cut off real brokers under load, and check what they served: make stress [SEED=0] [LOG=kafka]
	@echo "== stress: some five minutes of faults in real processes"
	@$(BIN)/python -m tests.stress --seed "$(or $(SEED),0)" --log "$(or $(LOG),sqlite)"
	@echo "== stress: tests that kill compactors, copies and Spark jobs, many times each"
	@EQUIPOISE_TEST_MANY=1 $(BIN)/python -m pytest --quiet -m repeats -n auto $(SPREAD)

stress-pulsar: setup ## Move, cut, join and kill real brokers under real Pulsar clients, and check what they served: make stress-pulsar [SEED=0] [LOG=kafka]
	@echo "== stress-pulsar: some two minutes of Python, Java and Go clients, with moves and deaths"
	@$(BIN)/python -m tests.stress --pulsar --seed "$(or $(SEED),0)" --log "$(or $(LOG),sqlite)"

vectors: setup ## Ask our own rules what Pulsar's classes were asked, and count equal answers: make vectors [VECTORS=folder]
	@echo "== vectors: $(or $(VECTORS),tests/vectors)"
	@$(BIN)/python -m tests.vectors $(if $(VECTORS),"$(VECTORS)")

docs: setup ## Build the documentation as a site, site/index.html
	@echo "== docs: mkdocs, as the group docs in pyproject.toml names it"
	@$(BIN)/python -m tests.docs.reference_pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m uv run --quiet --isolated --frozen --only-group docs --python $(BIN)/python \
	  python -m mkdocs build --strict --clean # With --quiet, it would not count warnings.

proto: setup ## Make the code of Pulsar's commands anew from equipoise/brokers/pulsar/wire/pulsar_api.proto
	@echo "== proto: protoc, as the group proto in pyproject.toml names it"
	@$(BIN)/python -m uv run --quiet --isolated --frozen --only-group proto --python $(BIN)/python \
	  python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. equipoise/brokers/pulsar/wire/pulsar_api.proto

page-libraries: setup ## Fetch the libraries of the page from npm again, and check them
	@echo "== page-libraries: what compose/page_libraries.py names"
	@$(BIN)/python -m compose.page_libraries

fuzz: setup ## Fuzz what strangers send to the Pulsar service: make fuzz [SECONDS=60]
	@echo "== fuzz: atheris for $(or $(SECONDS),60) s"
	@$(BIN)/python -m uv run --quiet --isolated --frozen --all-extras --group dev --group fuzz --python $(BIN)/python \
	  python -m tests.fuzz -max_total_time="$(or $(SECONDS),60)"

release: setup ## Build the packages of a release from a clean commit, check them, and test the wheel alone on each Python at hand
	@$(BIN)/python -m tests.release

clean: ## Remove .venv, the local Kafka, and all that builds, checks and tests leave behind
	@echo "== clean: removing .venv, the local Kafka and caches"
	@if test -d .kafka; then $(PYTHON) -m compose.local_kafka stop --kill; fi
	@rm -rf .kafka .venv build dist site htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
