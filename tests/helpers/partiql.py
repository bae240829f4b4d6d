"""What moto's PartiQL parser does not take: statements with parameters, as the puts and deletes that they stand for."""

import re

from botocore.exceptions import ClientError

CODES = {"ResourceNotFoundException": "ResourceNotFound", "ValidationException": "ValidationError"}
REFUSALS = {
    "INSERT": {"Error": {"Code": "DuplicateItem"}},
    "DELETE": {},
    "UPDATE": {"Error": {"Code": "ConditionalCheckFailed"}},
}
"""What DynamoDB Local answers to a statement whose condition does not hold."""


NOT_DEFINED = "An expression attribute name used in the document path is not defined"
"""What DynamoDB Local says of a key attribute whose name begins as a placeholder does."""


class WithStatements:
    """A client of moto that carries out statements as DynamoDB Local answers them."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def batch_execute_statement(self, Statements):  # noqa: N803 - boto3's name
        return {"Responses": [self._answer(**statement) for statement in Statements]}

    def _answer(self, Statement, Parameters):  # noqa: N803
        answers = {"INSERT": self._insert, "DELETE": self._delete, "UPDATE": self._update}
        verb = Statement.partition(" ")[0]
        if name := re.search(r"""(?:VALUE \{|WHERE |AND )["']([#:][^"']*)""", Statement):
            return {"Error": {"Code": "ValidationError", "Message": f"{NOT_DEFINED}; attribute name: {name[1]}"}}
        try:
            return answers[verb](Statement, Parameters)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "ConditionalCheckFailedException":
                return REFUSALS[verb]
            return {"Error": {"Code": CODES[code], "Message": error.response["Error"]["Message"]}}

    def _insert(self, statement, parameters):
        (table,) = re.match(r'INSERT INTO "([^"]+)" ', statement).groups()
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

    def _update(self, statement, parameters):
        if " <= ?" in statement:
            return self._pair(statement, parameters)
        return (self._count if " SET " in statement else self._remove)(statement, parameters)

    def _pair(self, statement, parameters):
        table, changes, where = re.match(r'UPDATE "([^"]+)" (.+) WHERE (.+) RETURNING', statement).groups()
        sets, gone = re.findall(r'SET "([^"]+)" = \?', changes), re.findall(r'REMOVE "([^"]+)"', changes)
        key = re.findall(r'"([^"]+)" = \?', where)
        older = re.findall(r'"([^"]+)" <= \?', where)
        names = {f"#{name}": name for name in (*sets, *gone, *older)}
        values = dict(zip([f":{name}" for name in sets], parameters, strict=False))
        values |= dict(zip([f":old{name}" for name in older], parameters[-2:], strict=True))
        removes = f" REMOVE {', '.join(f'#{name}' for name in gone)}" if gone else ""
        found = self.client.update_item(
            TableName=table,
            Key=dict(zip(key, parameters[len(sets) : len(sets) + len(key)], strict=True)),
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in sets) + removes,
            ConditionExpression=" AND ".join(f"#{name} <= :old{name}" for name in older),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
            ReturnValues="ALL_NEW",
        )
        return {"Item": found["Attributes"]}

    def _count(self, statement, parameters):
        (table,) = re.match(r'UPDATE "([^"]+)" SET "n" = "n" \+ 1 ', statement).groups()
        expires = ' SET "ttl" = ? ' in statement
        found = self.client.update_item(
            TableName=table,
            Key=dict(zip(("pk", "sk"), parameters[-2:], strict=True)),
            UpdateExpression="SET n = n + :one" + (", #t = :ttl" if expires else ""),
            ConditionExpression="attribute_exists(pk)",
            ExpressionAttributeValues={":one": {"N": "1"}, **({":ttl": parameters[0]} if expires else {})},
            ReturnValues="ALL_NEW",
            **({"ExpressionAttributeNames": {"#t": "ttl"}} if expires else {}),
        )
        return {"Item": found["Attributes"]}

    def _remove(self, statement, parameters):
        table, removes, where = re.match(r'UPDATE "([^"]+)" (REMOVE .+) WHERE (.+)$', statement).groups()
        gone = re.findall(r'REMOVE "([^"]+)"', removes)
        key = dict(zip(re.findall(r'"([^"]+)" = \?', where)[:2], parameters[:2], strict=True))
        self.client.update_item(
            TableName=table,
            Key=key,
            UpdateExpression="REMOVE " + ", ".join(f"#{number}" for number in range(len(gone))),
            ConditionExpression=" AND ".join(f"#{number} = :{number}" for number in range(len(gone))),
            ExpressionAttributeNames={f"#{number}": name for number, name in enumerate(gone)},
            ExpressionAttributeValues={f":{number}": value for number, value in enumerate(parameters[2:])},
        )
        return {}
