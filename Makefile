# `make` alone says what there is. Everything it makes stands in .venv and .artemis, which `make clean` takes away again.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:

VENV := .venv
PY := $(VENV)/bin/python
HOME_FOLDER := .artemis
# What builds packages from source (pyspark, and this project). The first step installs them, from the same lock.
BUILD_TOOLS := setuptools wheel hatchling packaging pathspec pluggy trove-classifiers
PIP := $(PY) -m pip --disable-pip-version-check --retries 5 --timeout 60
# Containers may forbid compiled files: then each process compiles the package anew (0.5 s), and pytest all tests (8 s).
unexport PYTHONDONTWRITEBYTECODE
SPELLED := artemis_lifecycle artemis_lifecycle_tests bench docs examples spec hatch_build.py README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md Makefile
# Give one yourself with `make setup PYTHON=/path/to/python`.
PYTHON ?=
# More for pytest, or for the demo (`make demo ARGS="--with nessie,paimon"`): `make test ARGS="-k postgres"`; `-n 0` for all of it in one process, which a debugger needs.
ARGS ?=

# The first interpreter that runs and is of a version that all parts know.
FIND_PYTHON = for found in $(PYTHON) $(if $(PYTHON),,python3.11 python3.12 python3.13 python3); do \
	"$$found" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && break; found=; done

# The demo's catalogs where there are some, else those of lifecycle.yaml.
USE_CONFIG = if [ -z "$$ARTEMIS_CONFIG" ]; then ARTEMIS_CONFIG=lifecycle.yaml; \
	[ ! -f $(HOME_FOLDER)/demo/lifecycle.yaml ] || ARTEMIS_CONFIG=$(HOME_FOLDER)/demo/lifecycle.yaml; fi; \
	export ARTEMIS_CONFIG

# `make ui WORKERS=2`: runs are taken by that many processes, each with a live Spark session.
WARM = (cd "$$DAGSTER_HOME" && mkdir -p workers/runs workers/control workers/taken workers/results) && \
	sed "s|@HOME@|$$DAGSTER_HOME|" deploy/warm-workers.yaml >> "$$DAGSTER_HOME/dagster.yaml" && \
	{ "$(CURDIR)/$(VENV)/bin/artemis" workers --count $(WORKERS) & trap "kill $$!" EXIT INT TERM; }

# Loading one compiles it, and keeps the machine code beside it: in `make setup`, or in the middle of a first plan.
KERNEL_FILES := $(shell find artemis_lifecycle -name "*kernels.py")
COMMA := ,
SPACE := $(subst ,, )
KERNELS := $(subst $(SPACE),$(COMMA),$(strip $(subst /,.,$(KERNEL_FILES:.py=))))

.PHONY: help
help:  ## This list.
	@echo "Artemis Lifecycle. Needs Python 3.11 to 3.13 and Java 17 (to 23); the rest comes with \`make setup\`."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: $(VENV)/.project  ## The environment, Spark's jars and the embedded Postgres. Quick when it is all there.
	@$(PY) -m artemis_lifecycle.embedded setup
	@$(PY) -c "import $(KERNELS)" && echo "compiled: loops over metadata"

$(VENV)/.dependencies: requirements.lock
	@$(FIND_PYTHON); \
	if [ -z "$$found" ]; then \
		echo "Python 3.11, 3.12 or 3.13 is needed$(if $(PYTHON), and $(PYTHON) is none,, and none is on the path)." \
			"Install one: \`sudo apt-get install python3 python3-venv\` (Debian 12, Ubuntu 24.04 or newer)" \
			"or \`brew install python@3.12\` (macOS)." >&2; exit 1; fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$$found cannot make environments: \`sudo apt-get install python3-venv\`." >&2; exit 1; fi; \
	if ! $(PY) -c '' 2>/dev/null; then \
		echo "$(VENV): with $$("$$found" -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
		"$$found" -m venv --clear $(VENV); fi
	@awk -v names="$(BUILD_TOOLS)" 'BEGIN {split(names, list, " "); for (i in list) wanted[list[i]]} \
		/^[a-z]/ {split($$1, part, "=="); on = part[1] in wanted} on' requirements.lock > $(VENV)/build-tools.lock
	@echo "$(VENV): packages from requirements.lock (the first time takes minutes)"
	@$(PIP) install --quiet --no-deps --require-hashes -r $(VENV)/build-tools.lock
	@$(PIP) install --quiet --no-deps --require-hashes --no-build-isolation -r requirements.lock
	@touch $@

$(VENV)/.project: $(VENV)/.dependencies pyproject.toml
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: demo
demo: setup  ## The whole walk on three tables with 400 days of history, with a report: 4 to 9 minutes, 3 GB.
	@$(VENV)/bin/artemis demo $(ARGS)

.PHONY: ui
ui: setup  ## The Dagster UI on what the demo left (else on the tables of lifecycle.yaml), at 127.0.0.1. Ctrl-C ends it.
	@$(USE_CONFIG); exports=$$($(PY) -m artemis_lifecycle.embedded env) && eval "$$exports" && \
	mkdir -p "$$DAGSTER_HOME" && cp dagster.yaml "$$DAGSTER_HOME/dagster.yaml" && \
	$(if $(WORKERS),$(WARM) &&) cd "$$DAGSTER_HOME" && \
	"$(CURDIR)/$(VENV)/bin/dagster" instance concurrency set artemis_spark $(or $(WORKERS),2) >/dev/null && \
	export PYTHONWARNINGS="ignore:Function \`dev_command\` is superseded" && \
	exec "$(CURDIR)/$(VENV)/bin/dagster" dev --workspace "$(CURDIR)/workspace.yaml" --host 127.0.0.1 \
		$(if $(PORT),--port $(PORT))

# Types are checked beside the tests: $(call WITH_TYPES,command of the tests).
WITH_TYPES = $(VENV)/bin/mypy & types=$$!; $(1); tests=$$?; \
	wait $$types || { echo "mypy: see above" >&2; exit 1; }; exit $$tests

.PHONY: test
test: setup lint  ## Everything that must hold: lint, import rules, types, tests. Leaves durations in .artemis/tests.xml.
	@$(PY) -m artemis_lifecycle_tests.class_archive
	@$(call WITH_TYPES,$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 30 \
		--junitxml $(HOME_FOLDER)/tests.xml $(ARGS))

.PHONY: test-fast
test-fast: $(VENV)/.project lint  ## What needs no JVM, with types: about a minute, before each commit.
	@$(call WITH_TYPES,$(PY) -m pytest -n 2 --dist worksteal -m "not jvm and not slow and not seconds" $(ARGS))

.PHONY: coverage
coverage: $(VENV)/.project  ## The lines that tests without a JVM reach; fails below the floor in pyproject.toml.
	@$(PY) -m pytest -n 2 --dist worksteal -m "not jvm and (not slow or nights)" --cov --cov-report=term:skip-covered $(ARGS)

.PHONY: nightly
nightly: setup  ## What takes too long for `make test`, in parts of bounded time: three hours, or `make nightly PART=foreign`.
	@$(PY) -m artemis_lifecycle_tests.nightly $(PART) $(if $(ARGS),-- $(ARGS))

.PHONY: campaign
campaign: setup  ## So many actions of others (`make campaign ACTIONS=200000`) against the lifecycle, with a report; resumes.
	@ARTEMIS_FOREIGN_ACTIONS=$(or $(ACTIONS),200000) ARTEMIS_FOREIGN_SHARDS=2 ARTEMIS_FOREIGN_STATE=$(HOME_FOLDER)/campaign \
		$(PY) -m pytest artemis_lifecycle_tests/foreign/test_foreign_actors.py -n 2 $(ARGS)

.PHONY: spec
spec:  ## The model of garbage collection, every state of it: with all guards, and without each (ARGS=--large: larger bounds).
	@for tool in spin gcc; do command -v $$tool >/dev/null || { echo "The model's checker needs $$tool:" \
		"\`sudo apt-get install spin gcc\` (Debian, Ubuntu) or \`brew install spin gcc\` (macOS)." >&2; exit 1; }; done
	@$(FIND_PYTHON); "$${found:-python3}" spec/check.py $(ARGS)

.PHONY: docs
docs: $(VENV)/.project  ## The documentation as a site, in site/. Fails for a broken link.
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

.PHONY: lint
lint: $(VENV)/.project  ## Style, spelling, which room may import which, and the package's size.
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/codespell $(SPELLED)
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) -m artemis_lifecycle_tests.size

.PHONY: types
types: $(VENV)/.project  ## Types, strictly.
	@$(VENV)/bin/mypy

.PHONY: format
format: $(VENV)/.project  ## Format the code and apply lint's automatic fixes.
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

LOCK = $(VENV)/bin/uv pip compile --generate-hashes --no-emit-index-url --no-emit-find-links --universal \
	--python-version 3.11 --custom-compile-command "make lock" --quiet $(UPGRADE)
PYPAIMON := artemis_lifecycle_tests/paimon/requirements

.PHONY: lock
lock: $(VENV)/.project  ## Write requirements.lock anew from pyproject.toml; newer versions with UPGRADE=--upgrade.
	@$(LOCK) pyproject.toml --extra dev -o requirements.lock
	@$(LOCK) $(PYPAIMON).in -o $(PYPAIMON).lock

.PHONY: bench
bench: setup  ## Iceberg's own expire action and this project's planner, side by side: see bench/README.md.
	@$(PY) -m bench $(ARGS)

.PHONY: records
records: setup  ## Every published figure anew, its raw output kept: nine hours, `PART=handoff`, or so many MINUTES=180; resumes.
	@$(PY) -m bench.records $(PART) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ARGS),-- $(ARGS))

.PHONY: wheel
wheel: $(VENV)/.project  ## A wheel with its Java classes compiled, and the source it is built of, in dist/. Needs a JDK (javac), 17 or newer.
	@$(PY) -m artemis_lifecycle.embedded jars
	@rm -f dist/artemis_lifecycle-*
	@trap 'rm -f artemis_lifecycle/_commit.txt' EXIT; git diff --quiet HEAD -- artemis_lifecycle 2>/dev/null && \
	  git rev-parse HEAD > artemis_lifecycle/_commit.txt; \
	  ARTEMIS_JARS="$${ARTEMIS_JARS:-$(CURDIR)/$(HOME_FOLDER)/jars}" $(PY) -m build --no-isolation

# An image whose base has Debian's python3, python3-venv, openjdk-17-jre-headless, tini and libnss-wrapper is built offline.
BASE ?= debian:bookworm-slim
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: image
image: wheel  ## The container image artemis-lifecycle:VERSION, with what requirements.lock names (EXTRAS="gcs ui": so many). Needs Docker.
	@$(PY) deploy/image.py
	@DOCKER_BUILDKIT=0 docker build --quiet --network host --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) \
		--tag artemis-lifecycle:$(VERSION) dist/image

.PHONY: stack
stack: setup  ## The whole deployment of deploy/compose.yaml, started, used and looked at. Needs Docker, docker-compose, 12 GB.
	@$(PY) deploy/stack.py $(VERSION) $(ARGS)

.PHONY: stop
stop:  ## Stop the embedded Postgres.
	@if [ -x $(PY) ]; then $(USE_CONFIG); $(PY) -m artemis_lifecycle.embedded stop; fi

.PHONY: clean
clean:  ## Delete all that make made: environment, jars, Postgres and its data, the demo's tables.
	@if [ -x $(VENV)/bin/artemis ]; then $(USE_CONFIG); $(PY) -m artemis_lifecycle.embedded remove; fi
	rm -rf $(VENV) $(HOME_FOLDER) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
