"""The texts of a new application's files. ``$package`` and ``$name`` are replaced when they are written."""

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$project"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["streamfold"]

[project.optional-dependencies]
deploy = ["streamfold[deploy]"]
testing = ["streamfold[testing]"]

[tool.hatch.build.targets.wheel]
packages = ["$package"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
streamfold_app = "$package:app"
"""
MAKEFILE = """\
# The application that streamfold's commands open.
export STREAMFOLD_APP = $package:app

# What goes into a function beside the package. Lambda's Python has boto3, and streamfold needs nothing else there. Add
# what handlers import, with all that it needs: such as opensearch-py, or a wheel in wheels/.
FUNCTION_PACKAGES = $$(or $$(wildcard wheels/streamfold-*.whl),streamfold)

test:
	python -m pytest

replay:
	mkdir -p .streamfold
	streamfold replay events/*.jsonl --state .streamfold/replay.db --fresh

routes:
	streamfold routes

template:
	streamfold template > template.yaml

check:
	streamfold template --check template.yaml

# The stage that is deployed to (samconfig.toml), and whether older code may run beside newer: on during a rollout.
STAGE ?= dev
OLDER_CODE ?= off

# sam and ministack, an emulator of AWS, pin packages that the application does not: each has an environment of its own.
export PATH := $$(PATH):$$(CURDIR)/.tools/sam/bin:$$(CURDIR)/.tools/ministack/bin

tools:
	python -m venv .tools/sam
	.tools/sam/bin/python -m pip install --quiet aws-sam-cli
	python -m venv .tools/ministack
	.tools/ministack/bin/python -m pip install --quiet ministack aws-sam-translator boto3

build:
	@command -v sam > /dev/null || { echo "make build needs the command sam: make tools installs it" >&2; exit 1; }
	SAM_CLI_TELEMETRY=0 AWS_DEFAULT_REGION=$$$${AWS_DEFAULT_REGION:-us-east-1} sam build --build-in-source

# Deploys the build into the emulator on this machine, writes the items of the recordings, and compares the rows.
rehearse: build
	python -m streamfold.starter.rehearsal events/*.jsonl

# What the deployed code would make otherwise: rows of a sample of the items, which are read. The tag names that code.
diff:
	streamfold diff --old $package:app@deployed/$$(STAGE) --engine dynamodb --table $$(TABLE)

deploy: build
	SAM_CLI_TELEMETRY=0 sam deploy --config-env $$(STAGE) --parameter-overrides OlderCode=$$(OLDER_CODE)

# Fails as soon as an alarm of the stage rises, and if code, template, functions and state do not fit together.
MINUTES ?= 1
watch:
	streamfold doctor --stack $stack-$$(STAGE)
	@for minute in $$$$(seq $$(MINUTES)); do \\
		sleep 60; \\
		rising=$$$$(aws cloudwatch describe-alarms --state-value ALARM --alarm-name-prefix $stack-$$(STAGE)- \\
			--query 'MetricAlarms[].AlarmName' --output text) || exit 1; \\
		if [ -n "$$$$rising" ]; then echo "These alarms rise: $$$$rising" >&2; exit 1; fi; \\
	done

# SAM calls these for its functions (BuildMethod: makefile), and says in ARTIFACTS_DIR where it wants the files. Only
# what runs on any processor is taken. Byte code is of use to a function of the same Python only.
build-%:
	mkdir -p "$$(ARTIFACTS_DIR)"
	python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade \\
		--only-binary=:all: --platform any --target "$$(ARTIFACTS_DIR)" $$(FUNCTION_PACKAGES)
	rm -rf "$$(ARTIFACTS_DIR)/bin" "$$(ARTIFACTS_DIR)/streamfold/docs" "$$(ARTIFACTS_DIR)/$package"
	cp -R $package "$$(ARTIFACTS_DIR)/$package"
	find "$$(ARTIFACTS_DIR)" -name __pycache__ -type d -prune -exec rm -rf {} +
	if grep -q "$$$$(python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')" template.yaml; then \\
		python -m compileall -q --invalidation-mode unchecked-hash "$$(ARTIFACTS_DIR)"; \\
	fi

.PHONY: test replay routes template check tools build rehearse diff deploy watch
"""
CI = """\
name: test
on:
  push:
    branches: [main]
  pull_request:
env:
  STREAMFOLD_APP: $package:app
permissions:
  contents: read
jobs:
  test:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.13"
      - run: pip install $install".[testing,deploy]"
      - run: python -m pytest
      - run: make replay
      - run: make check
      - run: make tools
      - run: make rehearse
"""
DEPLOY = """\
# Rolls a commit out: to stage, and then to prod, once somebody has approved (a rule of the environment prod).
name: deploy
on: workflow_dispatch
concurrency: deploy
permissions:
  contents: write
  id-token: write
jobs:
  stage:
    uses: ./.github/workflows/rollout.yml
    with:
      stage: stage
  prod:
    needs: stage
    uses: ./.github/workflows/rollout.yml
    with:
      stage: prod
"""
ROLLOUT = """\
# One stage. Its environment has the variables ROLE_ARN (a role that trusts this repository), AWS_REGION, and TABLE, the
# real name of the table main once there is one. The tag deployed/STAGE is the commit that runs there.
name: rollout
on:
  workflow_call:
    inputs:
      stage:
        type: string
        required: true
permissions:
  contents: write
  id-token: write
jobs:
  rollout:
    runs-on: ubuntu-latest
    timeout-minutes: 60
    environment: $${{ inputs.stage }}
    env:
      STAGE: $${{ inputs.stage }}
      TABLE: $${{ vars.TABLE }}
      STREAMFOLD_APP: $package:app
    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0
      - uses: actions/setup-python@v5
        with:
          python-version: "3.13"
      - run: pip install $install".[testing,deploy]"
      - run: make tools
      - name: The template fits the routes
        run: make check
      - name: The stack works in an emulator
        run: make rehearse
      - uses: aws-actions/configure-aws-credentials@v4
        with:
          role-to-assume: $${{ vars.ROLE_ARN }}
          aws-region: $${{ vars.AWS_REGION }}
      - name: The deployed code, beside the new
        id: before
        run: |
          if git rev-parse --quiet --verify "refs/tags/deployed/$$STAGE"; then
            git worktree add ../deployed "deployed/$$STAGE"
            echo "exists=true" >> "$$GITHUB_OUTPUT"
          fi
      - name: Rows that the new code makes otherwise
        if: steps.before.outputs.exists && vars.TABLE
        run: make diff || echo "::warning::Rows change. Rebuild these handlers after the deployment."
      - name: Older code may run beside newer
        if: steps.before.outputs.exists
        run: make -C ../deployed deploy OLDER_CODE=on PATH="$$PATH:$$PWD/.tools/sam/bin"
      - name: Deploy
        id: deploy
        run: make deploy OLDER_CODE=$${{ steps.before.outputs.exists && 'on' || 'off' }}
      - name: No alarm rises for a quarter of an hour
        run: make watch MINUTES=15
      - name: Roll back
        if: failure() && steps.before.outputs.exists && steps.deploy.outcome != 'skipped'
        run: make -C ../deployed deploy OLDER_CODE=on PATH="$$PATH:$$PWD/.tools/sam/bin"
      - name: One version runs alone
        run: make deploy OLDER_CODE=off
      - name: This commit is deployed
        run: |
          git tag --force "deployed/$$STAGE"
          git push --force origin "refs/tags/deployed/$$STAGE"
"""
SAMCONFIG = """\
# A stack for each stage. In an account of its own each stage has the same names; in one account the stack's name
# distinguishes them. The parameters are those of template.yaml. One that is not given keeps the value of the stack.
version = 0.1
$stages"""
STAGES = ("dev", "stage", "prod")
STAGE = """
[$stage.deploy.parameters]
stack_name = "$stack-$stage"
resolve_s3 = true
capabilities = "CAPABILITY_IAM"
confirm_changeset = false
fail_on_empty_changeset = false
tags = "stage=$stage"
"""
GITIGNORE = """\
.aws-sam/
.hypothesis/
.pytest_cache/
.streamfold/
.tools/
.venv/
__pycache__/
"""
README = """\
# $project

Views over a DynamoDB table, kept by streamfold.

```sh
pip install $install".[testing,deploy]"
make test      # a plain test, a twin and a proof of each handler
make replay    # folds events/*.jsonl into a local file, and shows the rows
make routes    # which handler reads and writes which keys
make template  # writes template.yaml again, after a change of keys or handlers
make check     # compares template.yaml with the handlers
make tools     # installs sam and ministack, each into an environment of its own
make build     # builds the functions with AWS SAM
make rehearse  # deploys them into an emulator on this machine, and compares rows
make deploy STAGE=dev
```

`.github/workflows/deploy.yml` rolls a commit out to the stages of `samconfig.toml`: `streamfold docs stages`.

The modules of `$package/` hold keys and handlers. `streamfold new handler NAME` adds another one, with its test and
an event. Commands open the application that `streamfold_app` of `pyproject.toml` names, unless
`STREAMFOLD_APP` names another.$carried
"""
CARRIED = """

`wheels/` has the streamfold that made this application, so that no package index needs to have it. Once yours has it,
remove the folder, and `--find-links wheels` here and in `.github/workflows/test.yml`.
"""
APPLICATION = '''\
"""The application: every handler's module is in the list of its routers."""

from $package import $name
from streamfold import App

app = App("$package", routers=[$name]$tenant)
lambda_handler = app.lambda_handler
jobs_handler = app.jobs_handler
verify_handler = app.verify_handler
'''
HANDLER = '''\
"""$Name: what the items of a day add up to."""

from typing import TypedDict

${table_import}from streamfold import $streamfold

${table}$ITEM = Key($item_key)
$TOTAL = Key($total_key)

router = Router()


class $Item(TypedDict):
    """An item of $ITEM, as the application writes it."""

    day: str
    amount: int


@router.view($ITEM, into=$TOTAL)
def $name(item: $Item) -> Row:
    return Row(day=item["day"], amount=Sum(item["amount"]), items=Count())
'''
HANDLER_TEST = '''\
"""Tests of $package.$name: the function by itself, single steps, and a proof."""

from collections.abc import Callable

from $package import $imports
from $package.$name import $ITEM, $TOTAL
from streamfold import Count, Row, Sum
from streamfold.testing import Proof, Twin


def test_an_item_adds_its_amount_to_its_day() -> None:
    assert $name.$name({"day": "2026-03-01", "amount": 3}) == Row(day="2026-03-01", amount=Sum(3), items=Count())


def test_the_total_follows_its_items() -> None:
    twin = Twin(app)
    twin.put($ITEM, ${tenant}item_id="1", day="2026-03-01", amount=3)
    twin.put($ITEM, ${tenant}item_id="2", day="2026-03-01", amount=4)
    row = twin.row($TOTAL, ${tenant}day="2026-03-01")
    assert row is not None
    assert row["amount"] == 7
    twin.put($ITEM, ${tenant}item_id="2", day="2026-03-02", amount=4)
    row = twin.row($TOTAL, ${tenant}day="2026-03-01")
    assert row is not None
    assert row["amount"] == 3
    twin.delete($ITEM, ${tenant}item_id="2")
    assert twin.row($TOTAL, ${tenant}day="2026-03-02") is None


def test_totals_hold_under_every_fault(prove: Callable[..., Proof]) -> None:
    prove(app, {$ITEM: [{"day": "2026-03-01", "amount": 3}, {"day": "2026-03-02", "amount": 4}]}, histories=100)
'''
SHOP = '''\
"""Orders: the total of each order, an index of a customer's orders, and the history of every change."""

from typing import TypedDict

from streamfold import Count, Key, Router, Row, Sum

ORDER = Key("ORDER#{order_id}", "METADATA")
LINE = Key("ORDER#{order_id}", "LINE#{sku}")
ORDER_TOTAL = Key("ORDER#{order_id}", "TOTAL")
BY_CUSTOMER = Key("CUSTOMER#{customer_id}", "ORDER#{order_id}")

router = Router()


class Order(TypedDict):
    """An item of ORDER."""

    customer_id: str
    status: str


class Line(TypedDict):
    """An item of LINE."""

    price: int
    quantity: int


@router.view(LINE, into=ORDER_TOTAL)
def order_total(line: Line) -> Row:
    return Row(total=Sum(line["price"] * line["quantity"]), lines=Count())


@router.index(ORDER, into=BY_CUSTOMER)
def orders_by_customer(order: Order) -> Row:
    return Row(customer_id=order["customer_id"], status=order["status"])


router.audit(ORDER)
'''
SHOP_TEST = '''\
"""Tests of $package.shop: the functions by themselves, single steps, and a proof."""

from collections.abc import Callable

from $package import app
from $package.shop import BY_CUSTOMER, LINE, ORDER, ORDER_TOTAL, order_total
from streamfold import Count, Row, Sum
from streamfold.testing import Proof, Twin


def test_a_line_adds_price_times_quantity() -> None:
    assert order_total({"price": 2, "quantity": 3}) == Row(total=Sum(6), lines=Count())


def test_the_total_follows_the_lines() -> None:
    twin = Twin(app)
    twin.put(LINE, order_id="1", sku="a", price=2, quantity=3)
    twin.put(LINE, order_id="1", sku="b", price=5, quantity=1)
    assert twin.row(ORDER_TOTAL, order_id="1")["total"] == 11
    twin.delete(LINE, order_id="1", sku="b")
    assert twin.row(ORDER_TOTAL, order_id="1")["total"] == 6


def test_an_order_moves_to_another_customer() -> None:
    twin = Twin(app)
    twin.put(ORDER, order_id="1", customer_id="ada", status="placed")
    twin.put(ORDER, order_id="1", customer_id="bob", status="paid")
    assert twin.row(BY_CUSTOMER, customer_id="ada", order_id="1") is None
    assert twin.row(BY_CUSTOMER, customer_id="bob", order_id="1")["status"] == "paid"


def test_the_shop_holds_under_every_fault(prove: Callable[..., Proof]) -> None:
    prove(
        app,
        {
            ORDER: [{"customer_id": "ada", "status": "placed"}, {"customer_id": "bob", "status": "paid"}],
            LINE: {"price": 2, "quantity": 3},
        },
        histories=100,
    )
'''
KEYS = """\
The keys of the table and the types of its items, as they were proposed from records.

A comment ``# unsure`` names what the items do not show: look at it, then remove the comment. Attributes that not all
items have are ``NotRequired``.
"""
TOTALS = '''\
"""Totals: how many items of $key there are. A first view, to be replaced by your own."""

from $package.keys import $imports
from streamfold import $streamfold

${tables}TOTALS = Key($given)

router = Router()


@router.view($key, into=TOTALS)
def totals(item: $type) -> Row:
    return Row($count=Count()$sums)
'''
TOTALS_TEST = '''\
"""Tests of $package.totals: the function by itself, single steps, and a proof."""

from collections.abc import Callable
$${decimal}from typing import Any

from $package import app
from $package.keys import $key, $type
from $package.totals import TOTALS, totals
from streamfold import Count, Row$sum_import
from streamfold.testing import Proof, Twin

ITEM: $type = $item
FIELDS: dict[str, Any] = $fields


def test_an_item_is_counted() -> None:
    assert totals(ITEM) == Row($count=Count()$sums)


def test_the_totals_follow_the_items() -> None:
    twin = Twin(app)
    twin.put($key, attributes=ITEM, **FIELDS)
    row = twin.row(TOTALS$tenant)
    assert row is not None
    assert row["$count"] == 1
    twin.delete($key, **FIELDS)
    assert twin.row(TOTALS$tenant) is None


def test_totals_hold_under_every_fault(prove: Callable[..., Proof]) -> None:
    prove(app, {$key: ITEM}, histories=100)
'''
