"""Buses, topics and queues that a test makes refuse, throttle and lose answers; requests are checked by botocore."""

from types import SimpleNamespace

import boto3
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.validate import validate_parameters

OPERATIONS = {
    "events": "PutEvents",
    "eventbridgev2": "PutEvents",
    "sns": "PublishBatch",
    "sqs": "SendMessageBatch",
}
LOST = "lost"
"""The answer to a request is lost, after it took effect."""


class Service:
    """A client of one service. ``answers``: for a request, a code or ``LOST``; for entries, their codes in order."""

    def __init__(self, name, answers=(), size=None):
        self.name = name
        self.answers = list(answers)
        self.size = size  # MaximumMessageSize
        self.requests = []
        self.taken = []
        client = boto3.client(name, region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
        self.model = client.meta.service_model
        self.asked = 0

    def _checked(self, operation, given):
        validate_parameters(given, self.model.operation_model(operation).input_shape)

    def _refused(self, code, status):
        return ClientError(
            {"Error": {"Code": code, "Message": "said so"}, "ResponseMetadata": {"HTTPStatusCode": status}},
            OPERATIONS[self.name],
        )

    def _answered(self, given, entries):
        """The code of each entry, None for one that is taken."""
        self._checked(OPERATIONS[self.name], given)
        self.requests.append(given)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, tuple):
            raise self._refused(*answer)
        codes = list(answer) if isinstance(answer, list) else [None] * len(entries)
        codes += [None] * (len(entries) - len(codes))
        self.taken += [entry for entry, code in zip(entries, codes, strict=True) if code is None]
        if answer == LOST:
            raise ReadTimeoutError(endpoint_url="https://there")
        return codes

    def put_events(self, **given):
        codes = self._answered(given, given["Entries"])
        entries = [{"EventId": "e"} if code is None else {"ErrorCode": code, "ErrorMessage": "no"} for code in codes]
        if self.name == "eventbridgev2":
            entries = [{**each, "SuccessCode": "DEDUPLICATED"} if "EventId" in each else each for each in entries]
        return {"FailedEntryCount": len([code for code in codes if code]), "Entries": entries}

    def send_message_batch(self, **given):
        return self._batch(given, given["Entries"])

    def publish_batch(self, **given):
        return self._batch(given, given["PublishBatchRequestEntries"])

    def _batch(self, given, entries):
        found = {"Successful": [], "Failed": []}
        for entry, code in zip(entries, self._answered(given, entries), strict=True):
            if code is None:
                found["Successful"].append({"Id": entry["Id"]})
            elif code != "nothing":
                found["Failed"].append(
                    {"Id": entry["Id"], "Code": code, "Message": "no", "SenderFault": code.startswith("Invalid")}
                )
        return found

    def get_queue_attributes(self, **given):
        self._checked("GetQueueAttributes", given)
        return self._attributes()

    def get_topic_attributes(self, **given):
        self._checked("GetTopicAttributes", given)
        return self._attributes()

    def _attributes(self):
        self.asked += 1
        if self.size == "denied":
            raise self._refused("AccessDenied", 403)
        return {"Attributes": {} if self.size is None else {"MaximumMessageSize": str(self.size)}}


def made(services):
    """A maker of clients, which gives these by their names and notes what it was asked for."""
    asked = []

    def make_client(name, endpoint_url=None, region=None):
        asked.append(SimpleNamespace(name=name, endpoint_url=endpoint_url, region=region))
        return services[name]

    make_client.asked = asked
    return make_client
