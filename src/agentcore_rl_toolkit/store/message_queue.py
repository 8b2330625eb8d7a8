"""An SQS queue of announcements that several readers share.

A message goes to one reader at a time. A reader that it isn't meant for returns it, so that the next may have it at
once. A message that every reader returns is hidden for longer and longer, and dropped after an hour.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from .s3_errors import store_error

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 20
_RETURNED_AT_ONCE = 4
_LONGEST_HIDDEN = 60
OLD_SECONDS = 3600.0


class MessageQueue:
    def __init__(self, name: str, connect: Callable[[], Any]) -> None:
        """`connect` returns boto3's client of SQS."""
        self._name, self._connect = name, connect
        self._may_return = True

    def send(self, body: str) -> None:
        self._connect().send_message(QueueUrl=self._url, MessageBody=body)

    def receive(self, wait_seconds: float, mine: Callable[[str], list[str] | None]) -> list[str]:
        """What `mine` finds in up to ten messages, which are deleted; None leaves a message to other readers."""
        answer = self._connect().receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=max(0, min(_LONGEST_WAIT, round(wait_seconds))),
            AttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
        )
        found: list[str] = []
        done: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for number, message in enumerate(answer.get("Messages", [])):
            keys, known = mine(message["Body"]), message.get("Attributes", {})
            entry = {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            if keys is not None or _is_old(known):
                found += keys or []
                done.append(entry)
            else:
                others.append(entry | {"VisibilityTimeout": seconds_hidden(known)})
        if done:
            self._connect().delete_message_batch(QueueUrl=self._url, Entries=done)
        if others and self._may_return:
            self._return(others)
        return found

    def _return(self, messages: list[dict[str, Any]]) -> None:
        """Without permission to return messages, others get them when the queue's own time to hide them is over."""
        try:
            self._connect().change_message_visibility_batch(QueueUrl=self._url, Entries=messages)
        except Exception as error:
            self._may_return = False
            problem = store_error(error, f"announcements for others could not be returned to {self._name}")
            logger.warning("%s\nhint: allow sqs:ChangeMessageVisibility, or give each client its own queue", problem)

    @cached_property
    def _url(self) -> str:
        if "/" in self._name:
            return self._name
        url: str = self._connect().get_queue_url(QueueName=self._name)["QueueUrl"]
        return url


def seconds_hidden(attributes: dict[str, str]) -> int:
    """For how long a message for others is hidden, by how often it has been received.

    >>> [seconds_hidden({"ApproximateReceiveCount": count}) for count in ("1", "4", "5", "7", "40")]
    [0, 0, 1, 4, 60]
    """
    more = int(attributes.get("ApproximateReceiveCount", 1)) - _RETURNED_AT_ONCE
    return 0 if more <= 0 else min(2 ** min(more - 1, 10), _LONGEST_HIDDEN)


def _is_old(attributes: dict[str, str]) -> bool:
    sent = attributes.get("SentTimestamp")
    return sent is not None and time.time() - int(sent) / 1000 > OLD_SECONDS
