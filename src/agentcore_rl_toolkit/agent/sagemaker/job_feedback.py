"""`JobFeedback`: reports how a job's rollout ended, CompleteRollout first, then UpdateReward.

A report is sent until the service accepts it or refuses it for good, always with the same client token. A rollout that
did not complete is reported as failed, without a reward. If the app has a store, the result lands there first, so that
what could not be reported is not lost; without one, the app logs it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

from ...errors import StoreError, StoreMisconfigured, StoreUnavailable
from ...store import Store
from ...store.s3_errors import error_code, store_error
from ...types import Status
from ..result import Result
from .job_rollout import JobRollout, is_sagemaker

logger = logging.getLogger(__name__)

_BUSY = frozenset({"ServiceQuotaExceededException", "ThrottlingException", "InternalServiceError"})
_PROCESSED = ("not in valid status", "Cannot transition trajectory")
"""Parts of the messages with which the service refuses a second report; AWS's SDK recognizes them by these too."""
_SECONDS = 60


class JobFeedback:
    """Delivers the result of a job's rollout to the app's store, if it has one, and then to the job."""

    def __init__(self, job: JobRollout, store: Store | None) -> None:
        self._job, self._store = job, store
        self._tokens = {"complete": str(uuid.uuid4()), "reward": str(uuid.uuid4())}
        self._done: set[str] = set()
        self._lock = threading.Lock()
        self._client: Any = None

    def prepare(self) -> None:
        """Import boto3 and make the client early, while the agent works."""
        try:
            self._connect()
            if self._store is not None:
                self._store.prepare()
        except Exception as error:
            logger.debug("the job's client could not be made yet: %s", error)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store the result, then report it, even if it can't be stored. Another call repeats only what failed."""
        unstored: StoreError | None = None
        try:
            self._once("stored", lambda: self._put(key, data))
        except StoreError as error:
            unstored = error
        self._report(Result.from_bytes(data))
        if unstored is not None:
            raise unstored
        return True

    def announce(self, key: str) -> None:
        if self._store is not None:
            self._store.announce(key)

    def _put(self, key: str, data: bytes) -> None:
        if self._store is not None:
            self._store.put_if_absent(key, data)

    def _report(self, result: Result) -> None:
        is_completed = result.status is Status.COMPLETED
        outcome = "ready" if is_completed else "failed"
        self._once("complete", lambda: self._send("complete_rollout", "complete", Status=outcome))
        rewards = result.rewards if is_completed else None
        if rewards is not None:
            numbers = rewards if isinstance(rewards, list) else [rewards]
            self._once("reward", lambda: self._send("update_reward", "reward", Rewards=numbers))

    def _once(self, step: str, call: Callable[[], None]) -> None:
        if step not in self._done:
            call()
            self._done.add(step)

    def _send(self, operation: str, token: str, **fields: Any) -> None:
        job = self._job
        try:
            getattr(self._connect(), operation)(
                JobArn=job.job_arn, TrajectoryId=job.trajectory_id, ClientToken=self._tokens[token], **fields
            )
        except StoreError:
            raise
        except Exception as error:
            if error_code(error) == "ConflictException" or any(part in str(error) for part in _PROCESSED):
                text = "%s of trajectory %s: the service has one already, or has ended the trajectory (%s)"
                logger.warning(text, operation, job.trajectory_id, error)
                return
            raise _translate(error, f"{operation} of trajectory {job.trajectory_id}") from error

    def _connect(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _client(self._job)
            return self._client


def _client(job: JobRollout) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import UnknownServiceError

    config = Config(
        connect_timeout=10,
        read_timeout=_SECONDS,
        retries={"total_max_attempts": 1},
        signature_version=None if is_sagemaker(job.endpoint) else UNSIGNED,
    )
    try:
        # Its own session: boto3's default one is not safe to use from several threads.
        session = boto3.Session(region_name=job.region)
        return session.client("sagemakerjobruntime", endpoint_url=job.endpoint, config=config)
    except UnknownServiceError as error:
        raise StoreMisconfigured(
            str(error), hint="this boto3 is too old for SageMaker jobs: pip install -U boto3"
        ) from None


def _translate(error: Exception, what: str) -> Exception:
    """The error as one of the store's: another try may help, or the service has refused the report."""
    if error_code(error) in _BUSY:
        return StoreUnavailable(f"{what}: {error}")
    return store_error(error, what)
