"""The operations of a SageMaker training session: each is submitted, then polled until it is over.

Training operations carry a sequence number, whose order the service keeps, and a client token, with which a request
that arrives twice counts once. So both may be sent again after an answer that was lost. Sampling has neither: what is
sent again is sampled again, and only the last answer is used.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from ...common.env_file import aws_region
from ...errors import EngineError

_SERVICE = "sagemakertrainingsessionruntime"
_RETRIED_CODES = ("ThrottlingException", "InternalServerException")
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
_STATUS = {"ValidationException": 400, "ThrottlingException": 429, "ConflictException": 503}
"""What an agent should see of the service's errors; of others, 502."""
_LONGEST_PAUSE = 4.0
_FIRST_POLL, _SLOWEST_POLL = 0.02, 1.0
"""The first pause between two polls, and the longest."""

Result = Mapping[str, Any]


class TrainingSession:
    """One session, through boto3. Submits block; use it from threads, or await `sample`."""

    def __init__(self, name: str, *, region: str | None = None, threads: int = 32, patience: float = 300.0) -> None:
        """`patience` is how many seconds of outage a call survives."""
        self.name = name
        self._region, self._patience, self._threads = region, patience, threads
        self._numbered = threading.Lock()
        self._sequence = 0
        self._unsure: dict[str, Any] | None = None
        """An operation that the service may have, because Ctrl-C or an outage came before its answer."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="training-session")

    def submit(self, kind: str, config: Mapping[str, Any]) -> str:
        """Submit a training operation, after those submitted before; its id."""
        with self._numbered:
            if self._unsure is not None:
                self._execute(self._unsure)
            return self._execute(
                {
                    "sequenceNumber": self._sequence + 1,
                    "clientToken": uuid.uuid4().hex,
                    "operationConfig": {kind: dict(config)},
                }
            )

    def _execute(self, operation: dict[str, Any]) -> str:
        """Send one operation. A refused one leaves its number free: a gap would block the session."""
        self._unsure = operation
        try:
            answer = self._call("execute_training_operation", **operation)
        except EngineError as error:
            if error.status in (_STATUS["ValidationException"], _STATUS["ConflictException"]):
                self._unsure = None
            raise
        self._sequence, self._unsure = operation["sequenceNumber"], None
        return str(answer["operationId"])

    def result(self, kind: str, operation_id: str) -> Result:
        """Wait for a training operation; what it came to."""
        return self._wait(kind, "get_training_operation_result", operation_id)

    def train(self, kind: str, config: Mapping[str, Any]) -> Result:
        return self.result(kind, self.submit(kind, config))

    def load(self, package: str) -> None:
        """Make the weights of a model package ready to sample from."""
        kind = "loadWeightsForSampling"
        answer = self._call("execute_sampling_operation", operationConfig={kind: {"modelPackageArn": package}})
        self._wait(kind, "get_sampling_operation_result", answer["operationId"])

    async def sample(self, config: Mapping[str, Any]) -> Result:
        """Sample. A caller that gives up leaves the operation to the service, which can't cancel one."""
        answer = await self._threaded("execute_sampling_operation", operationConfig={"sample": dict(config)})
        pause, found = _FIRST_POLL, None
        while found is None:
            await asyncio.sleep(pause)
            pause = min(_SLOWEST_POLL, 1.5 * pause)
            operation = {"operationId": answer["operationId"]}
            found = _outcome("sample", await self._threaded("get_sampling_operation_result", **operation))
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wait(self, kind: str, operation: str, operation_id: str) -> Result:
        pause, found = _FIRST_POLL, None
        while found is None:
            time.sleep(pause)
            pause = min(_SLOWEST_POLL, 1.5 * pause)
            found = _outcome(kind, self._call(operation, operationId=operation_id))
        return found

    async def _threaded(self, operation: str, **members: Any) -> Any:
        try:
            call = self._pool.submit(self._call, operation, **members)
        except RuntimeError as error:
            raise EngineError("the training session was closed", status=503) from error
        return await asyncio.wrap_future(call)

    def _call(self, operation: str, **members: Any) -> Any:
        """One call, repeated through throttling and outages."""
        from botocore.exceptions import BotoCoreError, ClientError

        call: Callable[..., Any] = getattr(self._client, operation)
        until, ceiling = time.monotonic() + self._patience, 0.25
        while True:
            try:
                return call(trainingSessionName=self.name, **members)
            except (BotoCoreError, ClientError) as error:
                if not _is_passing(error) or time.monotonic() > until:
                    raise _engine_error(error) from error
            ceiling = min(_LONGEST_PAUSE, 2 * ceiling)
            time.sleep(random.uniform(0, ceiling))

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            retries={"total_max_attempts": 1},  # `_call` repeats
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=self._threads,
        )
        try:
            region = self._region or aws_region()
            return boto3.session.Session().client(_SERVICE, region_name=region, config=config)
        except BotoCoreError as error:
            hint = "set AWS_REGION, and install boto3 1.43 or newer"
            raise EngineError(f"boto3 can't call SageMaker's training sessions: {error}\nhint: {hint}") from error


def _outcome(kind: str, answer: Mapping[str, Any]) -> Result | None:
    """The result of an operation that is over; None while it isn't."""
    status = answer.get("status")
    if status == "Completed":
        found = (answer.get("operationResult") or {}).get(kind)
        return found if isinstance(found, Mapping) else {}
    if status in ("Pending", "InProgress"):
        return None
    said = str(answer.get("errorDetails") or "no details")[:500]
    raise EngineError(f"SageMaker's {kind} operation ended as {status}: {said}")


def _is_passing(error: Exception) -> bool:
    """Whether the same call may succeed later."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return error.response.get("Error", {}).get("Code") in _RETRIED_CODES or status in _RETRIED_STATUSES
    return isinstance(error, ConnectionError | HTTPClientError)


def _engine_error(error: Exception) -> EngineError:
    response = getattr(error, "response", {})
    code = response.get("Error", {}).get("Code", type(error).__name__) if isinstance(response, dict) else ""
    return EngineError(f"SageMaker's training session: {error}", status=_STATUS.get(code, 502))
