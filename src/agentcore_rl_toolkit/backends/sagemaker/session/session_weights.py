"""The weights of a run in a SageMaker training session: passes, steps, and model packages to sample from; and the run.

Each version of the weights is saved as a model package, from the first on, and every rollout names the package it
samples from. So a token's version is certain, even while an update runs. Packages that no checkpoint names are deleted
when no rollout can use them any more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....deploy.aws.calls import Aws
from ....engine.services.session_engine import SessionEngine
from ....engine.services.training_session import TrainingSession
from ....errors import AgentCoreRLError, AwsRefused, EngineError
from ...loop.report import Report
from ...loop.service_examples import Example, measure_example_logprobs
from ...loop.service_run import ServiceRun
from ..sagemaker_place import delete_package, find_model, make_group, new_name, output_uri
from .backend import ADAM, TrainingSessionSettings
from .convert import passes, to_session_datum

logger = logging.getLogger(__name__)

_STARTS_WITHIN = 1800.0
_POLL_SECONDS = 2.0
_ENDED = ("Failed", "Stopping", "Stopped", "Expired", "Deleting", "DeletionFailed")
_RECORD = "training-session"
"""The file in the run's folder with the name of its session, for the run that resumes."""


def train(settings: TrainingSessionSettings, *, report: Report | None = None) -> dict[str, Any]:
    """Train and return the summary, which is also written to `summary.json`."""
    return ServiceRun(settings, "session", lambda names: SessionWeights(settings, names), report).run()


class SessionWeights:
    """The `ServiceWeights` of one run, in its own session. Use it as a context manager, which stops the session."""

    def __init__(self, settings: TrainingSessionSettings, names: Mapping[str, str] | None = None) -> None:
        """Creates a session with new weights, or with those of a checkpoint together with its optimizer."""
        self._settings, self._aws = settings, Aws(settings.region)
        self._output = output_uri(settings)
        self._record = settings.folder / _RECORD
        self._samplers: list[str] = []
        """Packages that rollouts sample from, oldest first."""
        self._kept: set[str] = set()
        """Those that a checkpoint names."""
        with contextlib.suppress(FileNotFoundError):  # the session of a run in this folder that was killed
            self._stop(self._record.read_text().strip())
        self._session = self._create()
        try:
            self._wait_until_running()
            if names is not None:
                with session_errors("can't restore the checkpoint"):
                    state = {"modelPackageArn": names["state"], "loadOptimizer": True}
                    self._session.train("loadState", state)
        except BaseException:  # also Ctrl-C: the session would continue, and be billed
            self._stop(self._session.name)
            raise

    # --- for the loop ------------------------------------------------------------------------------------------------

    def engine(self, version: str) -> SessionEngine:
        settings = self._settings
        return SessionEngine(
            self._session,
            self.sampler(),
            name=settings.model,
            context_length=settings.context_limit,
            weight_version=version,
            timeout=settings.timeout,
        )

    def sampler(self) -> str:
        """A model package with the current weights, ready to sample from."""
        with session_errors("can't sample from the weights"):
            package = self._package("saveWeights", {"mergeWeights": False})
            self._session.load(package)
        self._samplers.append(package)
        for old in self._samplers[: -2 - self._settings.async_steps]:
            self._samplers.remove(old)
            if old not in self._kept:
                self._delete(old)
        return package

    def update(self, examples: Sequence[Example]) -> dict[str, float]:
        names = {"learning_rate": "learningRate", **ADAM}
        adam = {names[name]: value for name, value in self._settings.adam.items()}
        with session_errors("can't train the weights"):
            parts = list(passes(examples))
            running = [self._session.submit("forwardBackward", self._pass(part)) for part in parts]
            stepping = self._session.submit("optimizerStep", {"adamParamsConfig": adam})
            outputs = [self._session.result("forwardBackward", one) for one in running]
            stepped = self._session.result("optimizerStep", stepping)
        figures = _mean_metrics([output.get("metrics") or {} for output in outputs], [len(part) for part in parts])
        figures |= {f"optimizer/{name}": float(value) for name, value in (stepped.get("metrics") or {}).items()}
        return figures | self._compare(
            examples, [one for output in outputs for one in output.get("lossFnOutputs") or []]
        )

    def save(self, step: int) -> dict[str, Any]:
        """Save the weights with the optimizer, and as a package to sample from that only `delete` removes."""
        with session_errors("can't save a checkpoint"):
            state = self._package("saveState", {"description": f"step {step}"})
            sampler = self._package("saveWeights", {"description": f"step {step}", "mergeWeights": False})
        self._kept |= {state, sampler}
        return {"state": state, "sampler": sampler, "session": self._session.name, "billed_tokens": self._billed()}

    def delete(self, names: Mapping[str, str]) -> None:
        for package in (names["state"], names["sampler"]):
            self._kept.discard(package)
            if package not in self._samplers:
                self._delete(package)

    def __enter__(self) -> SessionWeights:
        return self

    def __exit__(self, *_: object) -> None:
        for package in self._samplers:
            if package not in self._kept:
                self._delete(package)
        self._stop(self._session.name)
        self._record.unlink(missing_ok=True)
        self._session.close()
        self._aws.close()

    # --- the session -------------------------------------------------------------------------------------------------

    def _create(self) -> TrainingSession:
        settings, name = self._settings, new_name(self._settings.folder.resolve().name)
        model = {"BaseModelArn": find_model(self._aws, settings.model)}
        self._aws.change(
            "sagemaker",
            "create_training_session",
            TrainingSessionName=name,
            ModelPackageGroupArn=make_group(self._aws, settings.model_package_group),
            LoraConfig={"Rank": settings.lora_rank, "Alpha": settings.lora_alpha},
            RoleArn=settings.role_arn,
            ModelConfig=model | ({"AcceptEula": True} if settings.accept_eula else {}),
            OutputConfig={"S3Location": {"Path": f"{self._output}/{name}"}},
        )
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._record.write_text(name + "\n")
        return TrainingSession(name, region=settings.region, threads=settings.first_concurrency)

    def _describe(self) -> dict[str, Any]:
        name = self._session.name
        found = self._aws.read("sagemaker", "describe_training_session", TrainingSessionName=name)
        return dict(found["TrainingSessionDetail"])

    def _wait_until_running(self) -> None:
        until = time.monotonic() + _STARTS_WITHIN
        while (status := (known := self._describe())["TrainingSessionStatus"]) != "Running":
            if status in _ENDED or time.monotonic() > until:
                said = known.get("ErrorDetails") or f"it is {status} after {_STARTS_WITHIN:.0f} seconds"
                raise AgentCoreRLError(f"the training session {self._session.name} did not start: {said}")
            time.sleep(_POLL_SECONDS)

    def _stop(self, name: str) -> None:
        try:
            self._aws.change("sagemaker", "stop_training_session", TrainingSessionName=name)
        except AwsRefused as error:  # it has ended, or the service ends it when it is idle
            logger.info("the training session %s was not stopped: %s", name, error)

    def _billed(self) -> dict[str, int]:
        usage = self._describe().get("BillableTokenUsage") or {}
        return {name.removesuffix("TokenCount").lower(): int(count) for name, count in usage.items()}

    # --- parts -------------------------------------------------------------------------------------------------------

    def _package(self, kind: str, config: Mapping[str, Any]) -> str:
        package = self._session.train(kind, config).get("modelPackageArn")
        if not package:
            raise EngineError(f"SageMaker's {kind} operation named no model package")
        return str(package)

    def _delete(self, package: str) -> None:
        try:
            delete_package(self._aws, package, self._output)
        except AwsRefused as error:
            logger.warning("the model package %s was not deleted: %s", package, error)

    def _pass(self, part: Sequence[Example]) -> dict[str, Any]:
        settings = self._settings
        config: dict[str, Any] = {"lossFnName": settings.loss_name, "datumList": [to_session_datum(e) for e in part]}
        return config | ({"lossFnConfig": settings.loss_config} if settings.loss_config else {})

    def _compare(self, examples: Sequence[Example], outputs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """How far the trainer is from the sampler, if the service gives the trainer's logprobs."""
        logprobs = [np.asarray((one.get("logprobs") or {}).get("data") or (), np.float64) for one in outputs]
        if [len(one) for one in logprobs] != [len(example.targets) for example in examples]:
            return {}
        return measure_example_logprobs(examples, logprobs, self._settings.truncation)


@contextlib.contextmanager
def session_errors(problem: str) -> Iterator[None]:
    """Say what failed operations were for."""
    try:
        yield
    except EngineError as error:
        raise AgentCoreRLError(f"{problem}: {error}", hint="--resume continues from the latest checkpoint") from error


def _mean_metrics(metrics: Sequence[Mapping[str, float]], rows: Sequence[int]) -> dict[str, float]:
    """The metrics of several passes, weighted by their rows."""
    means = {}
    for name in dict.fromkeys(name for one in metrics for name in one):
        known = [(float(one[name]), count) for one, count in zip(metrics, rows, strict=True) if name in one]
        means[f"loss/{name}"] = sum(value * count for value, count in known) / sum(count for _, count in known)
    return means
