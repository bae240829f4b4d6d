"""Secrets that settings refer to: read once a process, and again where a server refuses them."""

import json
import sys
from base64 import b64encode
from fnmatch import fnmatchcase
from types import ModuleType

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from streamfold import App, Key, Router, Row, Sum
from streamfold.deploy.check import check_template
from streamfold.deploy.functions import Deployment
from streamfold.deploy.permissions import Permission, Place, Role, permissions
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import TemplateFile
from streamfold.derivations import secrets
from streamfold.derivations.search.opensearch import open_search
from streamfold.derivations.search.sink import Action
from streamfold.derivations.secrets import is_renewed, secret_key, secret_text
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable, SettingsError
from streamfold.settings import Settings
from streamfold.settings.readers import SecretReference
from streamfold.testing import TableTwin
from tests.search.stub import serving

ORDER, TOTAL = Key("ORDER#{order_id}", "METADATA"), Key("DAY#{day}", "TOTAL")
FIRST, SECOND = "k" * 32, "l" * 32
AUDIT_KEY = SecretReference("secretsmanager", "shop/audit-key")
PASSWORD = SecretReference("secretsmanager", "shop/search", "password")
ACTIONS = [Action("products", "1", 7, b"{}")]


@pytest.fixture(autouse=True)
def account(monkeypatch):
    """Secrets Manager and the Parameter Store of an account, and a process that has read nothing."""
    for name, value in (
        ("AWS_DEFAULT_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(secrets, "_read", {})
    with mock_aws():
        yield boto3.client("secretsmanager")


@pytest.fixture
def asked(monkeypatch):
    """The services that were asked for a secret."""
    found = []

    def counted(store, read):
        def reader(client, name):
            found.append(store)
            return read(client, name)

        return reader

    readers = {store: counted(store, read) for store, read in secrets.READERS.items()}
    monkeypatch.setattr(secrets, "READERS", readers)
    return found


def audited():
    router = Router()
    router.audit(ORDER)
    return App("shop", routers=[router])


def test_a_history_is_signed_with_the_key_of_the_secret_which_is_read_once(account, asked):
    account.create_secret(Name=AUDIT_KEY.name, SecretString=FIRST)
    given = Settings.from_environment({"STREAMFOLD_AUDIT_KEY": "secretsmanager:shop/audit-key"})
    assert given.audit_key == AUDIT_KEY
    assert [secret_key(given.audit_key) for _ in range(3)] == [FIRST.encode()] * 3
    assert asked == ["secretsmanager"]


def test_a_parameter_of_the_parameter_store_is_decrypted(asked):
    boto3.client("ssm").put_parameter(Name="/shop/key", Value=FIRST, Type="SecureString")
    given = Settings.from_environment({"STREAMFOLD_AUDIT_KEY": "ssm:/shop/key"})
    assert secret_key(given.audit_key) == secret_key(given.audit_key) == FIRST.encode()
    assert asked == ["ssm"]


def test_a_secret_in_the_setting_itself_asks_nobody(asked):
    assert secret_key(FIRST.encode()) == FIRST.encode()
    assert secret_key(None) is None
    assert secret_text("hush") == "hush"
    assert not is_renewed("hush")
    assert asked == []


def test_a_field_of_an_object_is_the_secret(account):
    account.create_secret(Name="shop/search", SecretString=json.dumps({"username": "fold", "password": "hush"}))
    assert secret_text(PASSWORD) == "hush"


@pytest.mark.parametrize("text", ["hush", "[1]", "{}", '{"password": 1}', '{"password": ""}', "null"])
def test_a_secret_without_the_field_is_refused_without_its_text(account, text):
    account.create_secret(Name="shop/search", SecretString=text)
    with pytest.raises(EngineError, match="secretsmanager:shop/search#password has no text 'password'") as refused:
        secret_text(PASSWORD)
    assert "hush" not in str(refused.value)


def test_a_secret_of_bytes_is_refused(account):
    account.create_secret(Name="shop/audit-key", SecretBinary=b"k" * 32)
    with pytest.raises(EngineError, match="holds bytes: expected a text"):
        secret_key(AUDIT_KEY)


def test_a_key_that_is_too_short_is_refused_without_its_text(account):
    account.create_secret(Name="shop/audit-key", SecretString="short")
    with pytest.raises(SettingsError, match="The key in secretsmanager:shop/audit-key has 5 bytes") as refused:
        secret_key(AUDIT_KEY)
    assert "short" not in str(refused.value)


@pytest.mark.parametrize("reference", [AUDIT_KEY, SecretReference("ssm", "/shop/key")])
def test_a_missing_secret_is_no_fault_of_a_record_and_is_asked_for_again(account, reference):
    with pytest.raises(
        EngineError, match=f"{reference} cannot be read .* a role with {secrets.ACTIONS[reference.store]}"
    ):
        secret_text(reference)
    account.create_secret(Name="shop/audit-key", SecretString=FIRST)
    boto3.client("ssm").put_parameter(Name="/shop/key", Value=FIRST, Type="String")
    assert secret_text(reference) == FIRST


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ClientError({"Error": {"Code": "ThrottlingException"}}, "GetSecretValue"), EngineUnavailable),
        (ClientError({"Error": {"Code": "InternalServiceError"}}, "GetSecretValue"), EngineUnavailable),
        (EndpointConnectionError(endpoint_url="https://secretsmanager"), EngineUnavailable),
        (ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetSecretValue"), EngineError),
    ],
)
def test_an_error_that_passes_is_told_from_one_that_does_not(monkeypatch, error, expected):
    def fails(client, name):
        raise error

    monkeypatch.setattr(secrets, "READERS", {"secretsmanager": fails})
    with pytest.raises(EngineError, match="secretsmanager:shop/audit-key") as raised:
        secret_text(AUDIT_KEY)
    assert type(raised.value) is expected


def test_a_record_waits_while_the_key_cannot_be_read(account):
    app = audited()
    table = TableTwin(ORDER.table, view="NEW_AND_OLD_IMAGES")
    table.put({**ORDER.key(order_id="1"), "n": 1})
    records = [record for shard in table.stream.shards for record in shard.records]
    engine, given = MemoryEngine(app.tables.values()), Settings(audit_key=AUDIT_KEY)
    with pytest.raises(EngineError, match="cannot be read"):  # the batch is reported, and nothing is parked
        app.process(records, engine=engine, settings=given)
    account.create_secret(Name=AUDIT_KEY.name, SecretString=FIRST)
    assert app.process(records, engine=engine, settings=given) == []


def test_a_password_that_was_changed_is_read_again_and_the_request_is_sent_again(account, asked):
    account.create_secret(Name="shop/search", SecretString=json.dumps({"password": "old"}))
    with serving() as stub:
        sink = open_search(Settings(search=stub.url, search_user="fold", search_password=PASSWORD))
        sink.bulk(ACTIONS)
        sink.bulk(ACTIONS)
        assert asked == ["secretsmanager"]
        account.put_secret_value(SecretId="shop/search", SecretString=json.dumps({"password": "new"}))
        stub.accept(f"Basic {b64encode(b'fold:new').decode()}")
        assert [answer.status for answer in sink.bulk(ACTIONS)] == [201]
        assert len(stub.requests) == 4
        assert asked == ["secretsmanager"] * 2
        sink.close()


def test_a_password_that_is_refused_and_has_not_changed_is_an_error_after_one_request(account):
    account.create_secret(Name="shop/search", SecretString=json.dumps({"password": "wrong"}))
    with serving() as stub:
        stub.accept("Basic of somebody else")
        sink = open_search(Settings(search=stub.url, search_user="fold", search_password=PASSWORD))
        with pytest.raises(EngineError, match="refused a request with 401"):
            sink.bulk(ACTIONS)
        assert len(stub.requests) == 1
        sink.close()


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["secretsmanager:", "ssm:", "ssm:/shop/search#password", "secretsmanager:shop#", "secretsmanager:#x", "ssm:a b"],
)
@pytest.mark.parametrize("name", ["STREAMFOLD_AUDIT_KEY", "STREAMFOLD_SEARCH_PASSWORD"])
def test_a_reference_to_no_secret_is_refused(name, text):
    with pytest.raises(SettingsError, match=f"Setting {name} begins with .*: expected secretsmanager:NAME"):
        Settings.from_environment({name: text})


def test_a_reference_is_shown_and_a_secret_is_not():
    given = {"STREAMFOLD_AUDIT_KEY": "ssm:/shop/key", "STREAMFOLD_SEARCH_PASSWORD": "hush"}
    shown = {name: value for name, value, *_ in Settings.from_environment(given).described()}
    assert shown["STREAMFOLD_AUDIT_KEY"] == "ssm:/shop/key"
    assert shown["STREAMFOLD_SEARCH_PASSWORD"] == "set"


def test_an_arn_names_a_secret():
    arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:shop/search-AbCdEf"
    found = Settings.from_environment({"STREAMFOLD_SEARCH_PASSWORD": f"secretsmanager:{arn}#password"})
    assert found.search_password == SecretReference("secretsmanager", arn, "password")


# --- permissions ----------------------------------------------------------------------------------------------------

GET = "secretsmanager:GetSecretValue"


def application():
    router = Router()
    router.audit(ORDER)

    @router.view(ORDER, into=TOTAL, group="totals")
    def totals(order):
        yield Row(day=order["day"], amount=Sum(order["amount"]))

    return App("shop", routers=[router])


def template(change=None):
    """The generated template of the application with a secret, and the findings of its check."""
    app, module = application(), ModuleType("signed_handlers")
    vars(module).update({name: getattr(app, name) for name in ("lambda_handler", "jobs_handler", "verify_handler")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        content = json.loads(json.dumps(SamTemplate(Deployment(app, module)).content))
        if change is not None:
            change(content)
        found = check_template(app, module.__name__, TemplateFile(content))
    return content, [str(each) for each in found if "ecret" in str(each) or "AUDIT_KEY" in str(each)]


def statement(content, role):
    document = content["Resources"][role]["Properties"]["Policies"][0]["PolicyDocument"]
    return [each for each in document["Statement"] if each.get("Fn::If", [""])[0] == "SignsHistory"]


def test_a_function_may_read_the_secrets_of_its_own_handlers():
    stores, secret = {"audit_key": "secretsmanager", "search_password": "ssm"}, Place("secret", "audit_key")
    granted = {
        role: permissions(application(), Role(*role), secrets=stores) for role in (("stream", "main"), ("operate",))
    }
    assert all(Permission(GET, secret) in each for each in granted.values())
    for role in (("stream", "totals"), ("queue", "main"), ("verifier",)):
        assert not [
            each for each in permissions(application(), Role(*role), secrets=stores) if each.place.kind == "secret"
        ]
    assert permissions(application(), Role("stream")) == permissions(application(), Role("stream"), secrets={})


def test_a_printed_policy_allows_the_secret_that_is_named_and_no_other(account):
    content, findings = template()
    assert findings == []
    ((_, granted, _),) = [each["Fn::If"] for each in statement(content, "ProjectorRole")]
    assert granted["Action"] == [GET]
    assert statement(content, "TotalsProjectorRole") == []
    given = {"AuditKeySecret": "shop/audit-key", "AWS::Partition": "aws", "AWS::Region": "eu-west-1"}
    pattern = granted["Resource"]["Fn::Sub"]
    for name, value in (given | {"AWS::AccountId": "123456789012"}).items():
        pattern = pattern.replace(f"${{{name}}}", value)
    arns = {
        name: account.create_secret(Name=name, SecretString=FIRST)["ARN"] for name in ("shop/audit-key", "shop/audit")
    }
    assert [name for name, arn in arns.items() if fnmatchcase(arn, pattern)] == ["shop/audit-key"]


def test_a_function_that_may_not_read_its_secret_is_named():
    def drop(content):
        document = content["Resources"]["ProjectorRole"]["Properties"]["Policies"][0]["PolicyDocument"]
        document["Statement"] = [each for each in document["Statement"] if "Fn::If" not in each]

    (finding,) = template(drop)[1]
    assert f"{GET} on the secret of the setting audit_key is not allowed, and Projector needs it" in finding


@pytest.mark.parametrize(
    ("reference", "action", "resource", "is_right"),
    [
        ("ssm:/shop/key", "ssm:GetParameter", "arn:aws:ssm:eu-west-1:123456789012:parameter/shop/key", True),
        ("ssm:/shop/key", "ssm:GetParameter", "arn:aws:ssm:eu-west-1:123456789012:parameter/shop/other", False),
        ("ssm:/shop/key", GET, "arn:aws:ssm:eu-west-1:123456789012:parameter/shop/key", False),
        ("secretsmanager:a#k", GET, "arn:aws:secretsmanager:eu-west-1:123456789012:secret:a-??????", True),
        ("secretsmanager:a#k", GET, "arn:aws:secretsmanager:eu-west-1:123456789012:secret:a-*", True),
        ("secretsmanager:a#k", GET, "arn:aws:secretsmanager:eu-west-1:123456789012:secret:b-??????", False),
    ],
)
def test_a_reference_of_ones_own_is_evaluated(reference, action, resource, is_right):
    def change(content):
        for each in content["Resources"].values():
            variables = each.get("Properties", {}).get("Environment", {}).get("Variables", {})
            if "STREAMFOLD_AUDIT_KEY" in variables:
                variables["STREAMFOLD_AUDIT_KEY"] = reference
        ((found,),) = [statement(content, "ProjectorRole")]
        found["Fn::If"][1] |= {"Action": [action], "Resource": resource}

    assert (template(change)[1] == []) is is_right


def test_a_reference_to_no_secret_is_a_finding():
    def change(content):
        content["Resources"]["Projector"]["Properties"]["Environment"]["Variables"]["STREAMFOLD_AUDIT_KEY"] = "ssm:"

    assert any("begins with ssm:" in each for each in template(change)[1])
