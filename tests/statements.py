"""What moto's PartiQL parser does not take: statements with parameters, as the puts and deletes that they stand for."""

import re

from botocore.exceptions import ClientError

CODES = {"ResourceNotFoundException": "ResourceNotFound", "ValidationException": "ValidationError"}


class WithStatements:
    """A client of moto that carries out ``INSERT`` and ``DELETE`` as DynamoDB Local answers them."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def batch_execute_statement(self, Statements):  # noqa: N803 - boto3's name
        return {"Responses": [self._answer(**statement) for statement in Statements]}

    def _answer(self, Statement, Parameters):  # noqa: N803
        if Statement.startswith("UPDATE"):
            statement = {"Statement": Statement, "Parameters": Parameters}
            return self.client.batch_execute_statement(Statements=[statement])["Responses"][0]
        verb, table = re.match(r'(INSERT) INTO "([^"]+)" |(DELETE) FROM "([^"]+)" ', Statement).group(1, 2)
        try:
            return self._insert(table, Statement, Parameters) if verb else self._delete(Statement, Parameters)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "ConditionalCheckFailedException":
                return {"Error": {"Code": "DuplicateItem"}} if verb else {}
            return {"Error": {"Code": CODES[code], "Message": error.response["Error"]["Message"]}}

    def _insert(self, table, statement, parameters):
        names = [name.replace("''", "'") for name in re.findall(r"'((?:[^']|'')+)': \?", statement)]
        condition = {"ConditionExpression": "attribute_not_exists(#0)", "ExpressionAttributeNames": {"#0": names[0]}}
        self.client.put_item(TableName=table, Item=dict(zip(names, parameters, strict=True)), **condition)
        return {}

    def _delete(self, statement, parameters):
        table, where = re.match(r'DELETE FROM "([^"]+)" WHERE (.+) RETURNING ALL OLD \*$', statement).groups()
        *key, count = re.findall(r'"((?:[^"]|"")+)" = \?', where)
        found = self.client.delete_item(
            TableName=table,
            Key=dict(zip(key, parameters[:-1], strict=True)),
            ConditionExpression="#n = :n",
            ExpressionAttributeNames={"#n": count},
            ExpressionAttributeValues={":n": parameters[-1]},
            ReturnValues="ALL_OLD",
        )
        return {"Item": found["Attributes"]}
