"""A client of DynamoDB that answers from a list, and the answers that mean trouble."""

from types import SimpleNamespace

from botocore.exceptions import ClientError

BUSY_CODES = [
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
    "RequestLimitExceeded",
    "InternalServerError",
]


class Client:
    """Answers calls from a list, raising what is an exception, and remembers them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []

    def __getattr__(self, operation):
        def call(**arguments):
            self.calls.append(SimpleNamespace(operation=operation, **arguments))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def error(code, status=400, **more):
    response = {"Error": {"Code": code, "Message": "why"}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return ClientError(response, "Operation")


def statement(code=None, *, item=False):
    return {
        "TableName": "real-shop",
        **({"Error": {"Code": code, "Message": "why"}} if code else {}),
        **({"Item": {"PK": {"S": "1"}}} if item else {}),
    }


def statements(*codes):
    return {"Responses": [statement(code) for code in codes]}
