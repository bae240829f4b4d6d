"""An OpenSearch server of a test that answers each request as it is told, without a network."""

import json

from opensearchpy.exceptions import NotFoundError, TransportError


class Scripted:
    """Answers by method and path; what it was not told of is not there."""

    def __init__(self):
        self.answers = {}
        self.requests = []

    def on(self, method, path, *answers):
        """Answers requests in this order, and then with the last answer; a number is a refusal with that status."""
        self.answers[method, path] = list(answers)
        return self

    def perform_request(self, method, path, params=None, body=None, headers=None):
        self.requests.append((method, path, body))
        answers = self.answers.get((method, path), [404])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == 404:
            raise NotFoundError(404, "index_not_found_exception", {})
        if isinstance(answer, int):
            raise TransportError(answer, "refused", {})
        return answer

    def sent(self, method, path):
        """The bodies of such requests, lines of JSON or one object."""
        bodies = [body for each, place, body in self.requests if (each, place) == (method, path)]
        return [[json.loads(line) for line in body.splitlines()] for body in bodies]

    def close(self):
        pass


def bulk(*statuses, verb="index"):
    """The answer to a bulk."""
    items = [{verb: {"status": status, "error": {"type": "t", "reason": "why"}}} for status in statuses]
    for item, status in zip(items, statuses, strict=True):
        if status < 300:
            del item[verb]["error"]
    return {"items": items}
