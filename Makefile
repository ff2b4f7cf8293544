# `make` lists the recipes; `make demo` and `make test` need only Python ≥ 3.11 and Java ≥ 17.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OLDEST := $(VENV)-oldest-spark
OLDEST_SPARK := 4.1
DEMO   ?=
TESTS  ?=
SEEDS  ?= 1-200
BATCHES ?= 20000
CONFORMANCE ?=
WITHOUT ?=
DRAWN   = $(shell grep -rlE 'hypothesis|scale_examples|choose_examples' tests/unit --include='test_*.py')
export TZ := UTC
unexport PYTHONDONTWRITEBYTECODE  # without byte code, every process compiles the package again

.DEFAULT_GOAL := help
.PHONY: help demo test fast soak slopes expressions conformance simulate browser oldest-spark lint format api clean java

help:  ## list the recipes
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

demo: java $(STAMP)  ## watch queries being added and removed on live streams (DEMO="--seconds 60 --queries 40")
	@$(BIN)/headrace demo $(DEMO)

test: java $(STAMP)  ## run all tests except those of the page: first without servers, then with Spark, Kafka, Postgres (WITHOUT="kafka")
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not spark and not kafka and not postgres and not browser' $(TESTS)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m '(spark or kafka or postgres)$(foreach server,$(WITHOUT), and not $(server))' $(TESTS)

fast: $(STAMP)  ## run the tests that need neither Spark nor Java nor other servers
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not spark and not kafka and not postgres and not browser' $(TESTS)

soak: $(STAMP)  ## run the tests that draw examples with 50 times as many (TESTS=… selects a part)
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile=soak $(or $(TESTS),tests/properties $(DRAWN))

slopes: $(STAMP)  ## run many micro-batches under churn; fail if a time or size grows with them (BATCHES=20000)
	$(BIN)/python scripts/measure-soak --batches $(BATCHES) $(SLOPES)

expressions: java $(STAMP)  ## judge all expressions over all types by the reference, DuckDB and Spark SQL (10 minutes)
	HEADRACE_EXPRESSIONS=all $(BIN)/python -m pytest -rP tests/unit/engine/compute/test_expression_judge.py tests/spark/test_expressions_against_spark.py

conformance: java $(STAMP)  ## run all scenarios on all back-ends: local, RDDs, Connect, cluster (CONFORMANCE="connect --only joins")
	PYTHONPATH=tests $(BIN)/python -m conformance $(CONFORMANCE)

simulate: $(STAMP)  ## run the deterministic simulation (SEEDS=1-10000, or SEEDS=7 to replay one seed)
	PYTHONHASHSEED=0 PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(SEEDS) $(SIMULATE)

browser: $(STAMP)  ## run the tests of the page, in Chromium
	$(BIN)/python -m pytest tests/browser $(TESTS)

oldest-spark: java $(STAMP)  ## run the tests and the scenarios with the oldest Spark that is supported, in an environment of its own
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 'pyspark==$(OLDEST_SPARK).*'
	PYSPARK_PYTHON=$(abspath $(OLDEST))/bin/python $(OLDEST)/bin/python -m pytest -m spark $(or $(TESTS),tests/spark)
	PYTHONPATH=tests $(OLDEST)/bin/python -m conformance $(or $(CONFORMANCE),rdd connect cluster)

lint: $(STAMP)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

api: $(STAMP)  ## write docs/api.md from signatures and docstrings
	$(BIN)/python scripts/make-api-reference

clean:  ## remove the environment and all build output
	rm -rf $(VENV) $(OLDEST) build out .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse src/*.egg-info
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@scripts/check-java

# The environment is updated when pyproject.toml changes; an interrupted installation leaves no stamp.
$(STAMP): pyproject.toml
	@scripts/check-python $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
