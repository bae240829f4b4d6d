"""A queue of SQS, which tests fill and count."""

import boto3


class Queue:
    """A queue of SQS, to which a test sends messages."""

    def __init__(self) -> None:
        self.client = boto3.client("sqs")
        self.url = self.client.create_queue(QueueName="failures")["QueueUrl"]

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.client.send_message(QueueUrl=self.url, MessageBody=body)

    def left(self) -> int:
        """How many messages a reader would get now, up to ten."""
        answer = self.client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return len(answer.get("Messages", []))
