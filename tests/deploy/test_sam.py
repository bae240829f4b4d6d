"""Generated templates: the check finds nothing in them, whatever the application, and each has what its routes need."""

import json
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import handlers
from handlers import app as shop
from streamfold import App, Collect, Count, Document, Key, Lookup, Put, Router, Row, Sum, Table
from streamfold.cli.template import filters_after
from streamfold.deploy import filters
from streamfold.deploy.alarms import MAPPING, OF_STREAM, OF_TABLE, OF_VERIFIER
from streamfold.deploy.check import check_template
from streamfold.deploy.choices import CHOICES
from streamfold.deploy.filters import PATTERNS_MAX, Filter, united
from streamfold.deploy.functions import Deployment, existing_table
from streamfold.deploy.sam import SamTemplate, notes, parts, plain
from streamfold.deploy.template_file import TemplateFile, as_yaml, read_template
from streamfold.errors import DeclarationError, SettingsError
from streamfold.testing import Clock, MappingSettings, MappingTwin, TableTwin
from streamfold.testing.mapping_settings import Filters
from tests.helpers.template import ROOT

ORDER, LINE = Key("ORDER#{order_id}", "METADATA"), Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL, PRODUCT = Key("ORDER#{order_id}", "TOTAL"), Key("SKU#{sku}", "PRODUCT")
STREAM = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-01-01T00:00:00.000"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/1234"


@pytest.fixture
def deployment_of(monkeypatch):
    """Gives the deployment of an application, in a module of its own."""

    def deployment(app, *left_out):
        module = ModuleType("drawn_handlers")
        for name in ("lambda_handler", "jobs_handler", "verify_handler"):
            if name not in left_out:
                setattr(module, name, getattr(app, name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return Deployment(app, module)

    return deployment


def views(router, group="main"):
    @router.view(LINE, into=TOTAL, group=group)
    def order_total(line):
        yield Row(total=Sum(line["price"]), lines=Count())


def feeds(router, group="main"):
    post, follow = Key("USER#{author}", "POST#{at:datetime}"), Key("USER#{reader}", "FOLLOWS#{author}")

    feed = Key("FEED#{reader}", "{at:datetime}#{author}", Table("main", ttl="expires"))

    @router.feed(post, audience=follow, into=feed, keep_days=30, group=group)
    def timeline(post):
        return Row(text=post["text"])


def cascades(router, group="main"):
    router.cascade(ORDER, children=[LINE], name="lines", group=group)


def archives(router, group="main"):
    router.archive(ORDER, to="s3://kept/orders", name="kept", group=group)


def histories(router, group="main"):
    router.audit(ORDER, name="history", group=group)


def other_table(router, group="main"):
    old = Key("{old_id}", table=Table("old", partition="id", sort=None, ttl="ends"))

    @router.on(old, into=Key("ENDED#{old_id}", "X"), name="ended", group=group)
    def ended(change):
        return [Put(Key("ENDED#{old_id}", "X"), old_id="1")]


def copies(router, group="main"):
    router.copy(ORDER, to=Table("copies", region="eu-west-1"), name="copy", group=group)


def searches(router, group="main"):
    @router.search(PRODUCT, to="products", fields={"name": "text"}, group="search")
    def products(product):
        return Document(name=product["name"])


def parks(router, group="main"):
    @router.view(PRODUCT, into=Key("CATEGORY#{category}", "TOTAL"), on_error="park", group=group)
    def categories(product):
        return Row(category=product["category"], names=Collect(product["name"], most=5))


def rows_elsewhere(router, group="main"):
    @router.view(Key("SESSION#{session_id}", "METADATA"), into=Key("DAY#{day}", "TOTAL", Table("rows")), group=group)
    def sessions(session):
        return Row(day=session["day"], sessions=Count())


PIECES = (rows_elsewhere, views, feeds, cascades, archives, histories, copies, searches, parks)


def drawn(random):
    router, pieces = Router(), random.sample(PIECES, random.randrange(1, 5))
    groups = ["main"] if searches in pieces else ["main", "main", "late"]  # a stream has two readers at most
    for piece in pieces:
        piece(router, random.choice(groups))
    return App("drawn", routers=[router])


def application(*pieces):
    router = Router()
    for piece in pieces:
        piece(router)
    return App("drawn", routers=[router])


def checked(template, app):
    file = TemplateFile(json.loads(json.dumps(template.content)))
    return check_template(app, "drawn_handlers", file)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.ci) for seed in range(8, 60))])
def test_the_check_finds_nothing_in_a_generated_template(deployment_of, seed):
    app = drawn(Random(seed))
    assert checked(SamTemplate(deployment_of(app)), app) == []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["operate", "read"])
def test_a_role_for_people_names_resources_of_the_template(deployment_of, kind, seed):
    template = SamTemplate(deployment_of(drawn(Random(seed))))
    file = TemplateFile(template.content)
    document = plain(file, template.role(kind))
    resources = [each["Resource"] for each in document["Statement"]]
    named = [text for each in resources for text in (each if isinstance(each, list) else [each])]
    assert named
    assert all(resources)
    named.remove("${KeyArn}")  # a parameter, of a statement that its condition decides
    assert [
        text for text in named if text != "*" and "${" in text and ":" not in text and not file.resource_of(text)
    ] == []


def test_who_reads_only_writes_nothing_to_tables(deployment_of):
    template = SamTemplate(deployment_of(application(views, feeds)))
    document = plain(TemplateFile(template.content), template.role("read"))
    actions = {action for each in document["Statement"] for action in each["Action"]}
    assert not {f"dynamodb:{verb}Item" for verb in ("Put", "Update", "Delete")} & actions


def test_a_template_in_yaml_is_the_same_as_in_json(tmp_path):
    content = SamTemplate(Deployment(shop, handlers)).content
    (tmp_path / "template.yaml").write_text(as_yaml(content, yaml))
    read = read_template(tmp_path / "template.yaml")
    assert check_template(shop, "handlers", read) == []
    whole = TemplateFile(content)
    assert {name: read.first(each.properties) for name, each in read.resources.items()} == {
        name: whole.first(each.properties) for name, each in whole.resources.items()
    }


def test_the_generated_template_of_the_examples_has_the_functions_of_the_written_one():
    def functions(file):
        return {
            (each.name, each.properties["Handler"], each.properties["Environment"]["Variables"].get("STREAMFOLD_GROUP"))
            for each in file.of_type("AWS::Serverless::Function")
        }

    generated = TemplateFile(SamTemplate(Deployment(shop, handlers)).content)
    assert functions(generated) == functions(read_template(ROOT / "template.yaml"))


# Names.


def named(tables, groups):
    """An application with a handler in each group, over each of the tables."""
    router = Router()
    for number, group in enumerate(groups):
        for table in tables:
            key = Key("ORDER#{order_id}", "METADATA", Table(table))
            router.on(key, external=True, name=f"{table}-{number}", group=group)(lambda change: None)
    return App("drawn", routers=[router])


NAMES = st.lists(st.from_regex(r"[aBs][aBs1.-]{0,3}", fullmatch=True), min_size=1, max_size=2, unique=True)


@given(NAMES, st.sampled_from([["main"], ["main", "Main"], ["daily-sums", "dailySums"], ["a", "b.c", "bC"]]))
def test_no_resource_of_a_template_takes_the_name_of_another(tables, groups):
    try:
        content = SamTemplate(Deployment(named(tables, groups), "drawn_handlers")).content["Resources"].values()
    except (SettingsError, DeclarationError):  # the next test has the text
        return
    functions = [each["Properties"] for each in content if each["Type"] == "AWS::Serverless::Function"]
    assert len([each for each in content if each["Type"] == "AWS::DynamoDB::Table"]) == len(tables) + 1
    assert {each["Environment"]["Variables"].get("STREAMFOLD_GROUP") for each in functions} == {None, *groups}
    found = len([each for each in content if each["Type"] == "AWS::CloudWatch::Alarm"])
    of_mapping = len([alarm for alarm in OF_STREAM if alarm.of == MAPPING])
    of_function = len(OF_STREAM) - of_mapping + of_mapping * len(tables)
    assert found == len(groups) * of_function + len(OF_VERIFIER) + len(OF_TABLE) * (len(tables) + 1)


@pytest.mark.parametrize(
    ("tables", "groups", "expected"),
    [
        (
            ["orders"],
            ["daily-sums", "dailySums"],
            "group 'daily-sums' and the function .* of group 'dailySums' .* Daily",
        ),
        (["a-b", "aB"], ["main"], "table 'a-b' and table 'aB' under one name, ABTable"),
        (["State", "orders"], ["main"], "the state table and table 'State' under one name, StateTable"),
    ],
)
def test_names_that_become_one_name_in_a_template_are_refused_with_both(tables, groups, expected):
    with pytest.raises(SettingsError, match=expected):
        SamTemplate(Deployment(named(tables, groups), "drawn_handlers"))


def test_a_table_of_another_region_takes_no_name_of_the_own_one():
    router = Router()
    orders = Table("orders")
    for name in ("copies", "more"):
        router.copy(Key("ORDER#{order_id}", "METADATA", orders), to=Table(name, region="eu-west-1"), name=name)
    template = SamTemplate(Deployment(App("drawn", routers=[router]), "drawn_handlers"))
    assert {"CopiesTableName", "MoreTableName"} <= template.content["Parameters"].keys()


def types(template):
    return {each["Type"] for each in template.content["Resources"].values()}


def test_an_application_of_views_alone_has_no_queue_no_archive_and_no_search(deployment_of):
    template = SamTemplate(deployment_of(application(views)))
    assert "AWS::SQS::Queue" not in types(template)
    assert "ArchiveBucket" not in template.content["Resources"]
    assert "SearchEndpoint" not in template.content["Parameters"]
    roles = [each for each in template.content["Resources"].values() if each["Type"] == "AWS::IAM::Role"]
    policies = [policy["PolicyDocument"] for role in roles for policy in role["Properties"]["Policies"]]
    given = [each for policy in policies for each in policy["Statement"] if "Action" in each]
    asking = [each for each in given if "dynamodb:Query" in each["Action"]]
    assert asking, "deltas are found by their bucket"
    assert all("StateTable" in json.dumps(each["Resource"]) for each in asking)


def test_a_handler_that_opens_fan_outs_brings_a_queue_and_its_function(deployment_of):
    resources = SamTemplate(deployment_of(application(cascades))).content["Resources"]
    assert resources["Spreader"]["Properties"]["Handler"] == "drawn_handlers.jobs_handler"
    assert (
        resources["Doorbell"]["Properties"]["VisibilityTimeout"] == 6 * resources["Spreader"]["Properties"]["Timeout"]
    )


def test_two_tables_have_two_mappings_with_alarms_and_their_own_keys(deployment_of):
    app = application(views, other_table)
    template = SamTemplate(deployment_of(app))
    resources = template.content["Resources"]
    assert list(resources["Projector"]["Properties"]["Events"]) == ["TableStream", "OldTableStream"]
    assert resources["OldTable"]["Properties"]["KeySchema"] == [{"AttributeName": "id", "KeyType": "HASH"}]
    assert resources["OldTable"]["Properties"]["TimeToLiveSpecification"]["AttributeName"] == "ends"
    assert checked(template, app) == []


def test_a_module_without_the_name_that_lambda_calls_is_refused_with_the_line_to_add(deployment_of):
    with pytest.raises(SettingsError, match=r"expected jobs_handler = app\.jobs_handler"):
        _ = SamTemplate(deployment_of(application(feeds), "jobs_handler")).content


# What may be chosen.


def at_bounds():
    for choice in CHOICES:
        for value in (choice.minimum, choice.most, *choice.values):
            if value is not None:
                yield pytest.param(choice.name, value, id=f"{choice.name} {value}")


@pytest.mark.parametrize(("name", "value"), [*at_bounds()])
def test_every_value_within_the_bounds_of_a_choice_is_accepted(deployment_of, name, value):
    app = application(views)
    template = SamTemplate(deployment_of(app))
    content = json.loads(json.dumps(template.content))
    content["Parameters"][name]["Default"] = value
    assert [
        each for each in check_template(app, "drawn_handlers", TemplateFile(content)) if each.level == "wrong"
    ] == []


def test_every_choice_is_a_parameter_that_the_template_uses(deployment_of):
    content = SamTemplate(deployment_of(application(views))).content
    text = json.dumps([content["Resources"], content["Conditions"]])
    assert [choice.name for choice in CHOICES if f'{{"Ref": "{choice.name}"}}' not in text] == []


def test_the_page_has_the_same_table_of_choices():
    page = (ROOT / "docs" / "template.md").read_text("utf-8")
    for choice in CHOICES:
        default = f"{choice.default:,}" if isinstance(choice.default, int) else choice.default or "none"
        assert f"| `{choice.name}` | {default} | {choice.bounds} | {choice.reason} |" in page, choice.name


# An existing table.


def existing(app, deployment_of, **more):
    table = existing_table("main", "orders", STREAM, more.get("key"), is_source=True)
    return SamTemplate(deployment_of(app), existing={"main": table})


def test_an_existing_table_is_left_out_and_its_stream_is_read(deployment_of):
    app = application(views, cascades)
    template = existing(app, deployment_of, key=KEY)
    resources = template.content["Resources"]
    assert "Table" not in resources
    assert "StateTable" in resources
    assert resources["Projector"]["Properties"]["Environment"]["Variables"]["STREAMFOLD_TABLE_MAIN"] == "orders"
    (event,) = resources["Projector"]["Properties"]["Events"].values()
    assert (event["Properties"]["Stream"], event["Properties"]["StartingPosition"]) == (STREAM, "TRIM_HORIZON")
    assert checked(template, app) == []


def test_the_key_of_an_existing_table_is_granted_to_who_reads_its_stream(deployment_of):
    def decrypts(template):
        text = json.dumps(template.content["Resources"]["ProjectorRole"])
        return KEY in text and "kms:Decrypt" in text

    assert decrypts(existing(application(views), deployment_of, key=KEY))
    assert not decrypts(existing(application(views), deployment_of))


@pytest.mark.parametrize(
    ("stream", "key", "expected"),
    [
        (None, None, "LatestStreamArn"),
        (STREAM.replace("orders", "other"), None, "stream of table 'other'"),
        ("orders", None, "is no stream"),
        (STREAM, "orders", "is no key"),
    ],
)
def test_a_stream_or_a_key_that_does_not_fit_an_existing_table_is_refused(stream, key, expected):
    with pytest.raises(SettingsError, match=expected):
        existing_table("main", "orders", stream, key, is_source=True)


def test_a_table_that_sends_its_changes_to_kinesis_is_read_there(deployment_of):
    app = application(views)
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/changes"
    table = existing_table("main", "orders", arn, None, is_source=True)
    template = SamTemplate(deployment_of(app), existing={"main": table})
    (event,) = template.content["Resources"]["Projector"]["Properties"]["Events"].values()
    assert event["Type"] == "Kinesis"
    assert all(
        json.loads(each["Pattern"]).keys() == {"data"} for each in event["Properties"]["FilterCriteria"]["Filters"]
    )
    assert checked(template, app) == []


# Filters before and after.


def record(partition, sort, event="MODIFY"):
    return {"eventName": event, "dynamodb": {"Keys": {"PK": {"S": partition}, "SK": {"S": sort}}}}


def test_a_filter_after_a_deployed_one_passes_what_either_passes(deployment_of):
    deployed = TemplateFile(SamTemplate(deployment_of(application(views))).content)
    now = SamTemplate(deployment_of(application(parks)))
    (found,) = filters_after(deployed, now, "drawn_handlers").values()
    passes = Filters(found.patterns)
    assert passes(record("ORDER#1", "LINE#a"))  # of the handler that went
    assert passes(record("SKU#1", "PRODUCT"))  # of the new one
    assert not passes(record("OTHER#1", "PRODUCT"))


def test_a_mapping_without_a_filter_stays_without_one_in_the_first_deployment(deployment_of):
    content = json.loads(json.dumps(SamTemplate(deployment_of(application(views))).content))
    (event,) = content["Resources"]["Projector"]["Properties"]["Events"].values()
    del event["Properties"]["FilterCriteria"]
    now = SamTemplate(deployment_of(application(parks)))
    (found,) = filters_after(TemplateFile(content), now, "drawn_handlers").values()
    assert found.patterns == ()


def test_patterns_that_are_too_many_together_are_refused_with_the_remedy():
    def pattern(number):
        return json.dumps({"dynamodb": {"Keys": {"PK": {"S": [f"P{number}"]}}}})

    before = [pattern(number) for number in range(PATTERNS_MAX)]
    assert united(before, Filter((before[0],))).patterns == tuple(before)
    with pytest.raises(SettingsError, match="once without a filter"):
        united(before, Filter((pattern(9),)))


def test_a_handler_that_costs_the_filter_is_named(deployment_of):
    router = Router()
    router.audit(Key("{tenant}", "{thing}"), name="everything")
    (text,) = notes(SamTemplate(deployment_of(App("drawn", routers=[router]))))
    assert "keys of everything begin with a field" in text


def test_keys_that_no_filter_can_hold_are_pointed_out(deployment_of, monkeypatch):
    router = Router()
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        router.audit(Key(f"{letter}#{{a}}", "X"), name=f"of_{letter}")
    monkeypatch.setattr(filters, "PATTERN_CHARACTERS_MAX", 80)
    (text,) = notes(SamTemplate(deployment_of(App("drawn", routers=[router]))))
    assert "its 26 keys are too many for a filter" in text


def test_a_stream_without_old_images_is_pointed_out(deployment_of):
    router = Router()
    key = Key("ORDER#{order_id}", "LINE#{sku}", Table("main", view="NEW_IMAGE"))

    @router.view(key, into=Key("SKU#{sku}", "TOTAL", Table("main", view="NEW_IMAGE")))
    def lines(line):
        return Row(lines=Count())

    (text,) = notes(SamTemplate(deployment_of(App("drawn", routers=[router]))))
    assert "no old images" in text


# Parts.


def test_parts_are_plain_json_with_filters_environment_policy_and_alarms(deployment_of):
    found = json.loads(json.dumps(parts(SamTemplate(deployment_of(application(views, feeds))))))
    projector = found["functions"]["Projector"]
    assert projector["Environment"]["STREAMFOLD_TABLE_MAIN"] == "${Table}"
    event = projector["Events"]["TableStream"]["Properties"]
    assert (event["Stream"], event["BatchSize"]) == ("${Table.StreamArn}", 100)
    assert json.loads(event["FilterCriteria"]["Filters"][0]["Pattern"])
    assert {"${Table.Arn}", "${StateTable.Arn}"} <= {
        each["Resource"] for each in projector["Policy"]["Statement"] if isinstance(each["Resource"], str)
    }
    assert found["resources"]["Table"]["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}
    assert found["resources"]["StateTable"]["TimeToLiveSpecification"]["AttributeName"] == "ttl"
    assert found["alarms"]["ProjectorRefused"]["AlarmActions"] == ["${TicketTopic}"]
    assert "Fn::" not in json.dumps(found)
    assert '"Ref"' not in json.dumps(found)


# The command.


@pytest.fixture
def printed(monkeypatch, capsys):
    from streamfold.cli import main

    def run(*arguments):
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", ["streamfold", "template", *arguments])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_command_prints_a_template_that_it_then_accepts(printed, tmp_path):
    code, out, _ = printed()
    (tmp_path / "made.yaml").write_text(out)
    assert code == 0
    assert printed("--check", str(tmp_path / "made.yaml"))[:2] == (
        0,
        "made.yaml: no difference that is wrong, 0 of advice.\n",
    )


def test_the_command_ends_with_1_for_a_difference_and_gives_json(printed, tmp_path):
    text = Path(ROOT / "template.yaml").read_text("utf-8").replace("TRIM_HORIZON", "LATEST", 1)
    (tmp_path / "made.yaml").write_text(text)
    code, out, _ = printed("--check", str(tmp_path / "made.yaml"), "--json")
    (line,) = out.splitlines()
    assert code == 1
    assert json.loads(line)["path"] == "Properties.Events.TableStream.Properties.StartingPosition"


def test_without_the_extra_the_command_prints_json(printed, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert json.loads(printed()[1])["Transform"] == "AWS::Serverless-2016-10-31"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--table", "other=orders"], "no table 'other'"),
        (["--table", "main=orders"], "--stream main=ARN"),
        (["--table", "orders", "--stream", "other=x"], "no table 'other'"),
        (["--check", "template.yaml", "--before", "template.yaml"], "--check reads a template"),
        (["--check", "missing.yaml"], "missing.yaml"),
        (["--stream", STREAM], "--stream belongs to --table"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_was_expected(printed, arguments, expected):
    code, _, err = printed(*arguments)
    assert code == 2
    assert expected in err


def test_an_existing_table_is_given_by_options(printed):
    code, out, _ = printed("--table", "main=orders", "--stream", STREAM, "--key", KEY, "--format", "parts")
    assert code == 0
    assert json.loads(out)["functions"]["Projector"]["Environment"]["STREAMFOLD_TABLE_MAIN"] == "orders"


# The first deployment.


def test_the_first_deployment_over_a_stream_that_is_on_gives_up_no_record_of_its_day():
    (event,) = (
        SamTemplate(Deployment(shop, handlers)).content["Resources"]["Projector"]["Properties"]["Events"].values()
    )
    age = {choice.name: choice.default for choice in CHOICES}[event["Properties"]["MaximumRecordAgeInSeconds"]["Ref"]]
    clock, seen = Clock(), []
    table = TableTwin(real_name="shop", clock=clock)
    for hour in range(24):
        table.put({"PK": f"ORDER#{hour}", "SK": "METADATA"})
        clock.advance(3600)

    def function(event, context):
        seen.extend(record["dynamodb"]["Keys"]["PK"]["S"] for record in event["Records"])
        return {"batchItemFailures": []}

    settings = MappingSettings(bisect=True, retries_max=20, age_seconds_max=age, report_item_failures=True)
    mapping = MappingTwin(table.stream, function, settings)
    mapping.run()
    assert mapping.discarded == []
    assert len(seen) >= 23, "the stream itself drops what is a day old"


# Searches and readers.


def one_document(order):
    return Document(n=1)


def test_a_search_beside_other_handlers_asks_for_its_endpoint_and_the_notes_say_so(deployment_of):
    router = Router()
    views(router)
    router.search(ORDER, to="orders", fields={"n": "long"})(one_document)
    template = SamTemplate(deployment_of(App("drawn", routers=[router])))
    assert "Default" not in template.content["Parameters"]["SearchEndpoint"]
    assert any("SearchEndpoint is asked for" in note for note in notes(template))
    assert checked(template, template.deployment.app) == []


def test_nothing_of_a_search_alone_is_deployed_without_an_endpoint(deployment_of):
    router = Router()
    views(router)
    looks_up = {"product": Lookup(PRODUCT, sku="sku", reads=["name"])}

    @router.search(LINE, to="lines", group="search", fields={"n": "long"}, lookup=looks_up)
    def lines(line, product):
        return Document(n=1)

    resources = SamTemplate(deployment_of(App("drawn", routers=[router]))).content["Resources"]
    without = {name for name, each in resources.items() if "Condition" not in each}
    assert {name for name in without if "Search" in name} == set()
    assert {"SearchSpreader", "SearchDoorbell", "SearchDoorbellPolicy", "Searcher"} <= resources.keys()


def test_three_groups_on_one_stream_are_noted_and_no_mistake(deployment_of):
    router = Router()
    for group in ("main", "reports", "billing"):
        views_of = Key(f"{group}#{{order_id}}", "TOTAL")
        router.view(ORDER, into=views_of, name=group, group=group)(lambda order: Row(orders=Count()))
    app = App("drawn", routers=[router])
    template = SamTemplate(deployment_of(app))
    (finding,) = checked(template, app)
    assert (finding.level, finding.resource) == ("advice", "BillingProjector")
    assert any("has 3 readers" in note and "Kinesis" in note for note in notes(template))


# Tables of other stacks.


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("made", [lambda name: {"Fn::ImportValue": name}, lambda name: {"Ref": f"Outside{name}"}])
def test_a_table_of_another_stack_beside_one_of_this_is_right(deployment_of, is_read, made):
    router, first, second = Router(), Table("first"), Table("second")
    into = Key("TOTAL", "ALL", table=second)
    router.view(Key("ORDER#{order_id}", "X", table=first), into=into, name="one")(lambda order: Row(orders=Count()))
    if is_read:
        into = Key("PRODUCTS", "ALL", table=second)
        router.view(Key("SKU#{sku}", "X", table=second), into=into, name="two")(lambda product: Row(products=Count()))
    app = App("drawn", routers=[router])
    content = json.loads(json.dumps(SamTemplate(deployment_of(app)).content))
    del content["Resources"]["FirstTable"]
    content["Parameters"] |= {f"OutsideFirstTable{end}": {"Type": "String"} for end in ("", "Arn", "StreamArn")}
    text = json.dumps(content["Resources"]).replace('{"Ref": "FirstTable"}', json.dumps(made("FirstTable")))
    for end in ("Arn", "StreamArn"):
        text = text.replace(f'{{"Fn::GetAtt": ["FirstTable", "{end}"]}}', json.dumps(made(f"FirstTable{end}")))
    content["Resources"] = json.loads(text)
    assert [
        each for each in check_template(app, "drawn_handlers", TemplateFile(content)) if each.level == "wrong"
    ] == []
