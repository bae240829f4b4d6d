# On a fresh clone, with git, make and Python 3.11 or newer: `make setup`, `make replay`, `make quick`, `make test`.
# `make help` lists the rest.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

PYTHON ?=
BYTECODE ?=
EVENTS ?= events/*.jsonl
STATE ?= .streamfold/replay.db
LOCK_FLAGS ?=
PYTEST_FLAGS ?=
NIGHTLY_FLAGS ?=
BENCH_FLAGS ?=
MUTANTS ?=

# The rooms of the pure core: their tests need no AWS library, but for those in files named *_aws.py.
QUICK := keys records routes ledger commit derivations read

# Parts of the framework that no function runs: tests/project/test_build.py compares them with what functions import.
NOT_DEPLOYED := $(addprefix streamfold/,cli deploy failures pages proofs starter testing __main__.py engines/memory.py \
	derivations/feed/verified.py \
	$(patsubst %,replay/%.py,costs mismatches replay stream) \
	$(patsubst %,lifecycle/%.py,adoption diff joins other_rows retire row_repair \
		row_sources row_sums rows search unseen))

# The stream of an existing table, as `streamfold template` takes it.
ORDERS_STREAM := arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/2026-01-01T00:00:00.000

# Of opensearch-py: its other way to send documents, compiled and 20 MB large.
NOT_NEEDED := opensearch-protobufs grpcio protobuf

VENV := .venv
SAM_VENV := .venv-sam
REHEARSAL_VENV := .venv-rehearsal
SITE_VENV := .venv-site
LOCK_VENV := .venv-lock
QUICK_VENV := .venv-quick$(if $(PYTHON),-$(notdir $(PYTHON)))
RUNTIME := .aws-sam/runtime
IN_VENV := $(VENV)/bin/python
# Byte code is made of what is imported, when it is: most of what the tools bring never is.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-input --no-compile
FROM_LOCK := $(PIP_INSTALL) --no-deps --require-hashes --requirement
PYTEST := -m pytest -n 2 --dist worksteal
WITH_ENGINE := $(IN_VENV) tests/tools/engine.py with dynamodb --

# Byte code of the tests and the package is kept: without it, each of many processes compiles them again.
unexport PYTHONDONTWRITEBYTECODE

# moto answers no address that holds an account's number.
test long nightly mutants spark: export AWS_ACCOUNT_ID_ENDPOINT_MODE = disabled
template build rehearse: export SAM_CLI_TELEMETRY = 0
template build rehearse: export AWS_DEFAULT_REGION = us-east-1

.PHONY: help setup replay quick test long check format nightly mutants bench events spark template build runtime rehearse browser site wheel lock clean build-Projector build-Spreader build-Verifier build-Searcher deployed-handlers powertools-lock byte-code

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.dev ## make .venv with all that make test and make check need

replay: $(VENV)/.run ## fold the recorded events into a fresh local state (EVENTS=events/shop.jsonl STATE=shop.db)
	@mkdir -p "$(dir $(STATE))"
	@$(VENV)/bin/streamfold replay $(EVENTS) --state "$(STATE)" --fresh

quick: $(QUICK_VENV)/.quick ## run the tests of the pure core, with no AWS library installed (PYTHON=python3.12)
	@$(QUICK_VENV)/bin/python $(PYTEST) --hypothesis-profile=quick $(QUICK:%=tests/%) --ignore-glob='*_aws.py' \
		-m "not slow and not nightly and not ci" $(PYTEST_FLAGS)

test: $(VENV)/.dev ## run the tests that need no server (PYTEST_FLAGS="-k key")
	@$(IN_VENV) $(PYTEST) -m "not engine and not nightly and not ci" $(PYTEST_FLAGS)

long: $(VENV)/.dev ## run the tests that take tens of seconds each
	@$(IN_VENV) $(PYTEST) -m "ci and not engine" $(PYTEST_FLAGS)

check: $(VENV)/.dev ## lint, formatting, types, which room may import what, and template.yaml against the routes
	@$(IN_VENV) -m ruff check .
	@$(IN_VENV) -m ruff format --check .
	@$(IN_VENV) -m mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(VENV)/bin/streamfold template --check template.yaml

format: $(VENV)/.dev ## mend what the linter can, and the layout
	@$(IN_VENV) -m ruff check --fix --quiet . || true
	@$(IN_VENV) -m ruff format .

nightly: $(VENV)/.spark ## run the long tests, with real engines beside them (needs JDKs 17 and 21, and Maven)
	@$(IN_VENV) -m tests.tools.opensearch fetch > /dev/null
	@REQUIRE_ENGINES=1 $(WITH_ENGINE) $(IN_VENV) $(PYTEST) -m nightly $(NIGHTLY_FLAGS)
	@$(IN_VENV) $(PYTEST) -m "not engine and not nightly" --hypothesis-profile=nightly $(NIGHTLY_FLAGS)

# mutmut knows a source root only under the name src: it works on a copy.
mutants: $(VENV)/.dev ## change lines one by one and see which change no test notices (MUTANTS="'streamfold.keys*'")
	@rm -rf mutants && mkdir mutants
	@git ls-files --cached --others --exclude-standard | tar --create --files-from=- | tar --extract --directory=mutants
	@mv mutants/framework mutants/src && sed -i.bak 's#framework#src#' mutants/pyproject.toml
	@cd mutants && "$(CURDIR)/$(VENV)/bin/mutmut" run $(MUTANTS)
	@cd mutants && "$(CURDIR)/$(VENV)/bin/mutmut" results

bench: $(VENV)/.dev ## measure, and write docs/performance.md (BENCH_FLAGS="replay state" measures these alone)
	@$(IN_VENV) -m tests.bench $(BENCH_FLAGS)

events: $(VENV)/.dev ## record events/ again from a real engine (needs a JDK 17 and Maven)
	@$(WITH_ENGINE) $(IN_VENV) -m tests.workload.record

spark: $(VENV)/.spark ## run the tests on Spark (needs a JDK 17 and Maven; PySpark takes a minute and 345 MB)
	@REQUIRE_ENGINES=1 $(WITH_ENGINE) $(IN_VENV) -m pytest tests/on_local -m "spark and not nightly" $(PYTEST_FLAGS)

template: $(SAM_VENV)/.sam $(VENV)/.dev ## check the template, what two pages make of it, and generated ones, as CloudFormation will see them
	@mkdir -p .aws-sam
	@$(SAM_VENV)/bin/python tests/tools/expand_template.py template.yaml > .aws-sam/expanded.json
	@$(SAM_VENV)/bin/python tests/tools/expand_template.py template.yaml docs/sources.md > .aws-sam/kinesis.json
	@$(SAM_VENV)/bin/python tests/tools/expand_template.py template.yaml docs/stages.md > .aws-sam/network.json
	@$(SAM_VENV)/bin/python tests/tools/state_machine_template.py > .aws-sam/state-machine.json
	@$(VENV)/bin/streamfold template --json > .aws-sam/generated.yaml
	@$(VENV)/bin/streamfold template --json --table main=orders --stream $(ORDERS_STREAM) > .aws-sam/existing.yaml
	@for made in generated existing; do \
		$(SAM_VENV)/bin/python tests/tools/expand_template.py .aws-sam/$$made.yaml > .aws-sam/$$made.json || exit 1; \
	done
	@$(SAM_VENV)/bin/cfn-lint --regions us-east-1 -- .aws-sam/expanded.json .aws-sam/kinesis.json .aws-sam/network.json \
		.aws-sam/state-machine.json .aws-sam/generated.json .aws-sam/existing.json

build: $(SAM_VENV)/.sam $(VENV)/.made ## build the Lambda functions (BYTECODE=required: stop without their Python)
	@BYTECODE="$(BYTECODE)" $(SAM_VENV)/bin/sam build --build-in-source

runtime: $(RUNTIME)/.made ## lay beside the build what Lambda has of its own, for the tests of the build

rehearse: $(VENV)/.dev $(REHEARSAL_VENV)/.rehearsal build ## deploy the build into an emulator of AWS, use, update and delete it
	@$(IN_VENV) -m tests.tools.rehearse

browser: $(VENV)/.browser site ## run the tests of pages in Chromium (needs the distribution's package chromium)
	@REQUIRE_ENGINES=1 $(IN_VENV) -m pytest tests/browser -m browser $(PYTEST_FLAGS)

# Not --quiet, which drops the warnings that --strict counts. Material's own warning asks for what docs/decisions/0078 decides.
site: $(SITE_VENV)/.site ## build the pages of docs/ into .site/build, links and anchors checked
	@NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --strict --config-file .site/mkdocs.yml
	@echo "To read and search them: python3 -m http.server --bind 127.0.0.1 --directory .site/build"

wheel: $(VENV)/.dev ## build the wheel and the source archive into dist/
	@rm -rf dist
	@$(IN_VENV) -m build --no-isolation --outdir dist . > /dev/null
	@ls dist

lock: ## resolve the locks again (LOCK_FLAGS=--upgrade takes newer versions)
	@command -v uv > /dev/null || [ -x $(LOCK_VENV)/bin/uv ] || $(MAKE) --no-print-directory $(LOCK_VENV)/.uv
	@set -e; PATH="$$PATH:$(CURDIR)/$(LOCK_VENV)/bin"; cd .requirements; \
	compile() { \
		UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile --quiet --universal --python-version 3.11 \
			--generate-hashes --no-annotate --no-emit-index-url $(LOCK_FLAGS) "$$@" > /dev/null; \
	}; \
	compile ../pyproject.toml run.in --output-file run.txt; \
	compile ../pyproject.toml run.in dev.in --extra testing --extra search --extra fast --extra typed --extra deploy --extra zones --extra otel --constraint run.txt --output-file dev.txt; \
	compile quick.in --constraint dev.txt --output-file quick.txt; \
	compile lambda-powertools.in --constraint run.txt --output-file lambda-powertools.txt; \
	compile lambda-search.in --constraint dev.txt $(NOT_NEEDED:%=--no-emit-package %) \
		--output-file lambda-search.txt; \
	compile spark.in --constraint dev.txt --output-file spark.txt; \
	compile browser.in --constraint dev.txt --output-file browser.txt; \
	compile runtime.in --constraint run.txt --output-file runtime.txt; \
	compile sam.in --output-file sam.txt; \
	compile rehearsal.in --output-file rehearsal.txt; \
	compile site.in --output-file site.txt
	@echo "Locked: $$(ls .requirements/*.txt | tr '\n' ' ')"

clean: ## take away all that was made here, the environments included
	@rm -rf $(VENV) $(SAM_VENV) $(REHEARSAL_VENV) $(SITE_VENV) $(LOCK_VENV) .venv-quick* .streamfold .aws-sam .site/build build dist mutants .coverage .coverage.*
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find framework handlers tests -name __pycache__ -type d -prune -exec rm -rf {} +

# SAM calls these for its functions (BuildMethod: makefile) and says in ARTIFACTS_DIR where it wants the files. Only what
# runs on any processor is taken, because the function's is another than this machine's. Byte code goes along, which a
# function cannot write.
build-Searcher: SEARCH_LOCK := lambda-search.txt
build-Projector build-Spreader build-Verifier build-Searcher: $(VENV)/.made
	@mkdir -p "$(ARTIFACTS_DIR)"
	@set -e; for lock in $(SEARCH_LOCK) $$($(MAKE) --no-print-directory --silent powertools-lock); do \
		$(IN_VENV) $(FROM_LOCK) ".requirements/$$lock" --target "$(ARTIFACTS_DIR)" --upgrade \
			--only-binary=:all: --platform any; \
	done
	@rm -rf "$(ARTIFACTS_DIR)/bin" "$(ARTIFACTS_DIR)/streamfold" "$(ARTIFACTS_DIR)/handlers"
	@tar --create $(NOT_DEPLOYED:%=--exclude=%) --directory=framework streamfold | tar --extract --directory="$(ARTIFACTS_DIR)"
	@$(MAKE) --no-print-directory --silent deployed-handlers | tar --create --files-from=- \
		| tar --extract --directory="$(ARTIFACTS_DIR)"
	@test -f "$(ARTIFACTS_DIR)/handlers/__init__.py" || { echo "handlers/__init__.py was not built" >&2; exit 1; }
	@find "$(ARTIFACTS_DIR)" -name __pycache__ -type d -prune -exec rm -rf {} +
	@$(MAKE) --no-print-directory --silent byte-code

# The lock of Powertools, or nothing: it is most of a function's archive. It goes along where STREAMFOLD_OBSERVE is
# anything but lines or off in the template, also a parameter, and where a handler imports it or is external.
powertools-lock:
	@if grep -E '^ *"?STREAMFOLD_OBSERVE"? *:' template.yaml | grep -qvE ':[ "'"'"']*(lines|off)["'"'"' ]*(#.*)?$$' \
		|| grep -rqE --include='*.py' 'aws_lambda_powertools|external *= *True' handlers; then \
		echo lambda-powertools.txt; \
	fi

# Byte code of another Python is half of the archive and of no use. So the Python of the template's functions compiles,
# where it is on this machine: `make build BYTECODE=required` stops where it is not.
byte-code:
	@version=$$(sed -n 's/^ *Runtime: *python\(3\.[0-9]*\).*/\1/p' template.yaml | sort -u); \
	if [ "$$(echo "$$version" | wc -w)" -ne 1 ]; then \
		echo "template.yaml names these Pythons: $$(echo $$version). Functions of one build need one Runtime." >&2; exit 1; \
	fi; \
	for python in "python$$version" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/"$$version".*/bin/python; do \
		if "$$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$version')" 2> /dev/null; then \
			"$$python" -m compileall -q -s "$(ARTIFACTS_DIR)" -p /var/task --invalidation-mode unchecked-hash "$(ARTIFACTS_DIR)" || exit 1; \
			exec "$$python" -X no_debug_ranges tests/tools/byte_code.py "$(ARTIFACTS_DIR)" streamfold; \
		fi; \
	done; \
	if [ "$(BYTECODE)" = required ]; then \
		echo "Python $$version, which the functions run, is not on this machine: install it, or build without BYTECODE=required." >&2; \
		exit 1; \
	fi; \
	echo "Without byte code: Python $$version, which the functions run, is not on this machine. They start slower." >&2

# The files of handlers/ that are deployed: those that git tracks, so that no .env file or draft goes along.
deployed-handlers:
	@if git ls-files --error-unmatch handlers/__init__.py > /dev/null 2>&1; then \
		git -c core.quotePath=off ls-files handlers; \
		left=$$(git ls-files --others handlers | grep -v __pycache__ || true); \
		[ -z "$$left" ] || echo "Not deployed, because git does not track it:" $$left >&2; \
	else \
		echo "git does not track handlers/: its Python files and mappings are deployed, and nothing else." >&2; \
		find handlers -name '*.py' -o -path 'handlers/mappings/*.json'; \
	fi

# --- environments: each is made once, and again when its lock changes -------------------------------------------------

$(VENV)/.made $(SAM_VENV)/.made $(REHEARSAL_VENV)/.made $(SITE_VENV)/.made $(LOCK_VENV)/.made $(QUICK_VENV)/.made: %/.made:
	@for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
		if "$$python" -c 'import ensurepip, sqlite3, sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
			echo "Making $* with $$("$$python" -c 'import sys; print("Python %d.%d.%d" % sys.version_info[:3])')"; \
			"$$python" -m venv "$*" && touch "$@"; \
			exit; \
		fi; \
	done; \
	echo "No Python 3.11 or newer with venv and sqlite3 among: $(or $(PYTHON),python3.13 python3.12 python3.11 python3)" >&2; \
	echo "Install one (on Debian and Ubuntu python3-venv too), or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1

$(VENV)/.run: $(VENV)/.made .requirements/run.txt pyproject.toml
	@echo "Installing what streamfold needs to run"
	@$(IN_VENV) $(FROM_LOCK) .requirements/run.txt
	@$(IN_VENV) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch "$@"

$(VENV)/.dev: $(VENV)/.run .requirements/dev.txt
	@echo "Installing what the tests and checks need"
	@$(IN_VENV) $(FROM_LOCK) .requirements/dev.txt
	@touch "$@"

$(VENV)/.spark: $(VENV)/.dev .requirements/spark.txt
	@echo "Installing PySpark"
	@$(IN_VENV) $(FROM_LOCK) .requirements/spark.txt
	@touch "$@"

$(VENV)/.browser: $(VENV)/.dev .requirements/browser.txt
	@echo "Installing what drives a browser"
	@$(IN_VENV) $(FROM_LOCK) .requirements/browser.txt
	@touch "$@"

$(QUICK_VENV)/.quick: $(QUICK_VENV)/.made .requirements/quick.txt
	@echo "Installing what the tests of the pure core need"
	@$(QUICK_VENV)/bin/python $(FROM_LOCK) .requirements/quick.txt
	@touch "$@"

$(SAM_VENV)/.sam: $(SAM_VENV)/.made .requirements/sam.txt
	@echo "Installing the SAM tools"
	@$(SAM_VENV)/bin/python $(FROM_LOCK) .requirements/sam.txt
	@touch "$@"

$(REHEARSAL_VENV)/.rehearsal: $(REHEARSAL_VENV)/.made .requirements/rehearsal.txt
	@echo "Installing an emulator of AWS"
	@$(REHEARSAL_VENV)/bin/python $(FROM_LOCK) .requirements/rehearsal.txt
	@touch "$@"

$(SITE_VENV)/.site: $(SITE_VENV)/.made .requirements/site.txt
	@echo "Installing what the site is built with"
	@$(SITE_VENV)/bin/python $(FROM_LOCK) .requirements/site.txt
	@touch "$@"

$(RUNTIME)/.made: $(VENV)/.made .requirements/runtime.txt
	@rm -rf $(RUNTIME)
	@$(IN_VENV) $(FROM_LOCK) .requirements/runtime.txt --target $(RUNTIME) --no-compile --only-binary=:all:
	@touch "$@"

$(LOCK_VENV)/.uv: $(LOCK_VENV)/.made
	@$(LOCK_VENV)/bin/python $(PIP_INSTALL) uv
	@touch "$@"
