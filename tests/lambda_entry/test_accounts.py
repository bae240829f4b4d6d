"""State, rows and copies in another account than the function's: two accounts of moto, roles that are assumed."""

from types import SimpleNamespace

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from streamfold import App, Count, Key, Lookup, Router, Row, Table
from streamfold.batch.process import undeclared_names
from streamfold.engines import assumed_role, dynamodb_client
from streamfold.engines.dynamodb_client import make_client
from streamfold.errors import EngineError, SettingsError
from streamfold.lambda_entry.function import Function
from streamfold.records.values import decode
from streamfold.routes.checks import check_accounts
from streamfold.settings import Settings
from tests.helpers.partiql import WithStatements
from tests.helpers.records import item, record
from tests.helpers.tables import make_table

OWN, OTHER, THIRD = "123456789012", "222222222222", "333333333333"
ROLE = f"arn:aws:iam::{OTHER}:role/shop-tables"
ROLE_OF_COPIES = f"arn:aws:iam::{THIRD}:role/shop-copies"
FUNCTION = f"arn:aws:lambda:us-east-1:{OWN}:function:projector"
KEYS, STATE_KEYS = {"PK": "S", "SK": "S"}, {"pk": "S", "sk": "S"}
ORDER, CUSTOMER = Key("ORDER#{order_id}", "METADATA"), Key("CUSTOMER#{customer_id}", "ORDERS")
COPIES = Table("copies")


def application(*, copies=False):
    router = Router()

    @router.view(ORDER, into=CUSTOMER)
    def orders(order):
        yield Row(customer_id=order["customer_id"], orders=Count())

    if copies:
        router.copy(ORDER, to=COPIES, name="copied")
    return App("shop", routers=[router])


def client_in(account):
    return make_client(role=f"arn:aws:iam::{account}:role/anybody") if account != OWN else boto3.client("dynamodb")


def items_in(account, table):
    found = client_in(account).scan(TableName=table)["Items"]
    return sorted((decode({"M": each}) for each in found), key=str)


@pytest.fixture
def statements(monkeypatch):
    """Each client carries out the statements of PartiQL that moto does not."""
    made = make_client

    def with_statements(*given, **more):
        return WithStatements(made(*given, **more))

    for module in (dynamodb_client, "streamfold.lambda_entry.function"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.make_client", with_statements)


@pytest.fixture
def in_three_accounts(aws, statements):
    make_table(client_in(OWN), "orders", KEYS)
    make_table(client_in(OTHER), "orders", KEYS)
    make_table(client_in(OTHER), "shop-state", STATE_KEYS)
    make_table(client_in(THIRD), "copies", KEYS)


def from_account(account, *records):
    return [{**each, "eventSourceARN": each["eventSourceARN"].replace(OWN, account)} for each in records]


def processed(app, settings, *records):
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000, invoked_function_arn=FUNCTION)
    named = Settings(tables={"main": "orders"}, observe="off", lanes=1, **settings)
    return Function(app, named)({"Records": list(records)}, context)


def placed(number, customer="ada"):
    return record(None, item(f"ORDER#{number}", customer_id=customer), number, table="orders")


def test_state_and_rows_are_written_in_the_account_of_the_role(in_three_accounts):
    records = from_account(OTHER, placed(1), placed(2))
    assert processed(application(), {"role": ROLE}, *records, records[0]) == {"batchItemFailures": []}
    (row,) = [each for each in items_in(OTHER, "orders") if each["SK"] == "ORDERS"]
    assert (row["PK"], row["orders"]) == ("CUSTOMER#ada", 2)
    assert items_in(OTHER, "shop-state")
    assert items_in(OWN, "orders") == []


def test_copies_go_to_a_third_account_while_state_and_rows_are_in_another(in_three_accounts):
    settings = {"role": ROLE, "roles": {"copies": ROLE_OF_COPIES}}
    response = processed(application(copies=True), settings, *from_account(OTHER, placed(1)))
    assert response == {"batchItemFailures": []}
    assert [each["customer_id"] for each in items_in(THIRD, "copies")] == ["ada"]
    assert [each["orders"] for each in items_in(OTHER, "orders") if "orders" in each] == [1]
    assert items_in(OWN, "orders") == []


def test_a_stream_of_another_account_feeds_rows_in_the_function_s_own(aws, statements):
    """Its table is used for nothing else, so no role is needed; the id is asked for by the table's ARN."""
    orders = Table("orders")
    router = Router()

    @router.view(Key("ORDER#{order_id}", "METADATA", orders), into=CUSTOMER)
    def of_customers(order):
        yield Row(customer_id=order["customer_id"], orders=Count())

    make_table(client_in(OTHER), "orders", KEYS)
    make_table(client_in(OWN), "rows", KEYS)
    make_table(client_in(OWN), "shop-state", STATE_KEYS)
    settings = {"tables": {"main": "rows", "orders": "orders"}}
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000, invoked_function_arn=FUNCTION)
    function = Function(App("shop", routers=[router]), Settings(observe="off", lanes=1, **settings))
    assert function({"Records": from_account(OTHER, placed(1))}, context) == {"batchItemFailures": []}
    assert [each["orders"] for each in items_in(OWN, "rows") if "orders" in each] == [1]


def test_records_of_a_table_that_is_used_in_another_account_are_refused(in_three_accounts):
    """The own account has a table of that name, too: its rows would be written there."""
    make_table(client_in(OWN), "shop-state", STATE_KEYS)
    with pytest.raises(SettingsError, match=f"handlers would use table 'orders' of account {OWN}"):
        processed(application(), {}, *from_account(OTHER, placed(1)))
    assert items_in(OWN, "orders") == []


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({"main": ROLE}, f"writes to table 'main' by {ROLE} of account {OTHER}, and the state is used with the funct"),
        ({"streamfold.state": ROLE}, f"'main' with the function's own role, and the state is used by {ROLE}"),
        ({"main": ROLE, "streamfold.state": ROLE_OF_COPIES}, f"by {ROLE} of account {OTHER}, and the state is used by"),
    ],
)
def test_rows_in_another_account_than_the_state_are_refused(roles, expected):
    with pytest.raises(SettingsError) as refused:
        check_accounts(application().routes, roles.get)
    assert expected in str(refused.value)
    assert "only router.copy writes to a table of a further account" in str(refused.value)


def test_items_that_get_attributes_are_rows_in_this_regard():
    router = Router()

    @router.attributes(ORDER, lookup={"customer": Lookup(Key("CUSTOMER#{customer_id}", "PROFILE", Table("people")))})
    def name(order, customer):
        return Row(customer_name=customer["name"])

    with pytest.raises(SettingsError, match="attributes 'name'"):
        check_accounts(App("shop", routers=[router]).routes, {"main": ROLE}.get)
    check_accounts(App("shop", routers=[router]).routes, {"people": ROLE}.get)


def test_tables_of_two_accounts_may_have_one_name(in_three_accounts):
    make_table(client_in(THIRD), "orders", KEYS)
    settings = {"role": ROLE, "roles": {"copies": ROLE_OF_COPIES}, "tables": {"main": "orders", "copies": "orders"}}
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000, invoked_function_arn=FUNCTION)
    function = Function(application(copies=True), Settings(observe="off", lanes=1, **settings))
    assert function({"Records": from_account(OTHER, placed(1))}, context) == {"batchItemFailures": []}
    assert [each["PK"] for each in items_in(THIRD, "orders")] == ["ORDER#1"]


@pytest.fixture
def assumed(monkeypatch):
    """The roles that were assumed."""
    roles = []
    made = BaseClient._make_api_call

    def call(self, operation, parameters):
        if operation == "AssumeRole":
            roles.append(parameters["RoleArn"])
        return made(self, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    return roles


def test_a_role_is_assumed_by_the_first_call_and_not_again_within_its_time(aws, assumed):
    client = make_client(role=ROLE)
    assert assumed == []
    for _ in range(3):
        client.list_tables()
    assert assumed == [ROLE]


def test_credentials_are_renewed_a_quarter_of_an_hour_before_they_end(aws, assumed, monkeypatch):
    monkeypatch.setattr(assumed_role, "ROLE_SECONDS", 900)  # so these always are
    client = make_client(role=ROLE)
    client.list_tables()
    client.list_tables()
    assert len(assumed) >= 2
    assert set(assumed) == {ROLE}


def test_a_role_that_is_refused_ends_the_batch_with_what_to_grant(aws, monkeypatch):
    made = BaseClient._make_api_call

    def call(self, operation, parameters):
        if operation == "AssumeRole":
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "refused"}}, "AssumeRole")
        return made(self, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    with pytest.raises(
        EngineError, match=r"shop-tables could not be assumed: .* AccessDenied.* the trust policy of sh"
    ):
        processed(application(), {"role": ROLE}, *from_account(OTHER, placed(1)))


@pytest.mark.parametrize(
    ("name", "text"),
    [("STREAMFOLD_ROLE", "own"), ("STREAMFOLD_ROLE", "shop-tables"), ("STREAMFOLD_ROLE_MAIN", "arn:aws:iam::1:role/a")],
)
def test_a_setting_that_names_no_role_is_refused(name, text):
    with pytest.raises(SettingsError, match=f"{name}='{text}' is no role: expected arn:aws:iam::ACCOUNT:role/NAME"):
        Settings.from_environment({name: text})


def test_the_role_of_a_table_goes_before_that_of_all_tables():
    variables = {"STREAMFOLD_ROLE": ROLE, "STREAMFOLD_ROLE_COPIES": ROLE_OF_COPIES, "STREAMFOLD_ROLE_MAIN": "own"}
    settings = Settings.from_environment(variables)
    found = {name: settings.role_of(name) for name in ("main", "copies", "people", "streamfold.state")}
    assert found == {"main": None, "copies": ROLE_OF_COPIES, "people": ROLE, "streamfold.state": ROLE}


def test_the_role_of_a_table_that_nobody_declares_is_pointed_out():
    settings = Settings(roles={"mian": ROLE})
    assert "Did you mean STREAMFOLD_ROLE_MAIN?" in undeclared_names(application(), settings)[0]
