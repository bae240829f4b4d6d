"""The doorbell: an SQS queue whose messages say which lanes of fan-outs are to be worked on, and nothing of an item.

The state holds what is to be done. A message that is lost, doubled or late changes nothing: open fan-outs that stand
still are rung for again.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from streamfold.errors import RecordError, refusal, shown, told
from streamfold.parking import queue_client
from streamfold.run import Rung

MESSAGES_MAX = 10
"""Messages of one call (SQS API Reference, SendMessageBatch)."""
REMEDY = "The schedule, or streamfold jobs --ring, rings again."


class Doorbell:
    """Rings for lanes by messages of a standard queue. A ring that fails is told to ``warn``, and loses nothing."""

    def __init__(self, application: str, url: str, warn: Callable[[str], None], client: Any = None) -> None:
        self.application = application
        self.url = url
        self.warn = warn
        self.client = client or queue_client(url)

    def ring(self, rung: Iterable[Rung], enough_time: Callable[[], bool] = lambda: True) -> list[Rung]:
        """Sends a message for each lane, ten a call, as long as there is time; returns the lanes that it did not send.

        A call takes 11 seconds at most. Whether a message is delivered once, twice or late is the queue's matter.
        """
        left: list[Rung] = []
        once = list(dict.fromkeys(rung))
        for first in range(0, len(once), MESSAGES_MAX):
            each = once[first : first + MESSAGES_MAX]
            left += self._sent(each) if enough_time() else each
        if left:
            self.warn(f"{len(left)} lanes of fan-outs were not rung for. {REMEDY}")
        return left

    def _sent(self, rung: list[Rung]) -> list[Rung]:
        """Sends some messages in one call; returns the lanes of those that the queue did not take."""
        from botocore.exceptions import BotoCoreError, ClientError

        entries = [{"Id": str(number), "MessageBody": self._text(each)} for number, each in enumerate(rung)]
        try:
            answer = self.client.send_message_batch(QueueUrl=self.url, Entries=entries)
        except ClientError as error:
            self.warn(
                f"The queue of STREAMFOLD_JOBS did not take a ring ({refusal(error)}). The function needs "
                "sqs:SendMessage there."
            )
            return rung
        except BotoCoreError as error:
            self.warn(f"The queue of STREAMFOLD_JOBS could not be reached ({type(error).__name__}: {told(error)}).")
            return rung
        refused = answer.get("Failed", ())
        if refused:
            self.warn(f"The queue of STREAMFOLD_JOBS did not take a ring ({refused[0]['Code']}).")
        return [rung[int(each["Id"])] for each in refused]

    def _text(self, rung: Rung) -> str:
        fan_out, lane = rung
        return json.dumps({"application": self.application, "fan_out": fan_out, "lane": lane})


def read_message(text: Any, application: str) -> Rung:
    """What a message rings for. Raises ``RecordError`` for one that is none, or of another application."""
    try:
        content = json.loads(text)
        named, fan_out, lane = content["application"], content["fan_out"], content["lane"]
    except (KeyError, TypeError, ValueError):
        named = fan_out = lane = None
    valid = isinstance(named, str) and isinstance(fan_out, str) and isinstance(lane, int) and lane >= 0
    if not valid or isinstance(lane, bool):
        raise RecordError(
            f"The message {shown(text)} rings for no lane: expected "
            '{"application": NAME, "fan_out": ID, "lane": NUMBER}, as STREAMFOLD_JOBS gets them.'
        )
    if named != application:
        raise RecordError(
            f"The message rings for application {named!r}, and this function is of {application!r}: each application "
            "needs a queue of its own in STREAMFOLD_JOBS."
        )
    return fan_out, lane
