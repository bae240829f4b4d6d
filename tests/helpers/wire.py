"""A client of DynamoDB whose requests go nowhere."""

import json
import zlib

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config

ANSWERS = {
    "BatchExecuteStatement": lambda asked: {"Responses": [{} for _ in asked["Statements"]]},
    "BatchGetItem": lambda asked: {"Responses": {table: [] for table in asked["RequestItems"]}},
    "TransactGetItems": lambda asked: {"Responses": [{} for _ in asked["TransactItems"]]},
}


class Wire:
    """A client of botocore whose requests end here: ``sent`` are the operations and bodies.

    ``answer`` is what is answered, or ``content`` as it stands.
    """

    def __init__(self):
        self.client = boto3.client(
            "dynamodb",
            region_name="eu-west-1",
            aws_access_key_id="x",
            aws_secret_access_key="y",
            config=Config(retries={"mode": "standard", "total_max_attempts": 1}),
        )
        self.sent = []
        self.status, self.answer, self.content = 200, None, None
        self.client.meta.events.register("before-send.dynamodb.*", self.send)

    def send(self, request, **_):
        target = request.headers["X-Amz-Target"]
        operation = (target.decode() if isinstance(target, bytes) else target).partition(".")[2]
        body = json.loads(request.body)
        assert int(request.headers["Content-Length"]) == len(request.body)
        self.sent.append((operation, body))
        answer = self.answer or ANSWERS.get(operation, lambda asked: {})(body)
        content = self.content or json.dumps(answer).encode()
        response = AWSResponse(request.url, self.status, {"x-amz-crc32": str(zlib.crc32(content))}, None)
        response._content = content
        return response
