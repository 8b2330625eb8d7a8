"""SageMaker's training sessions as far as the wire shows, checked by botocore's service models.

The control plane makes sessions, model packages and their groups; the runtime executes operations. Training operations
run in the order of their sequence numbers, and one that comes twice with a client token counts once. Two policies: by
itself it samples with arithmetic, as the other fakes do; `policy` is one that can learn.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .fake_server import FakeServer, Gone, Handler
from .reply_policy import ReplyPolicy, Sampled, Seen, Weights
from .service_model import Refused, check_request

MODEL = "fake-model"
HUB_ARN = f"arn:aws:sagemaker:us-west-2:aws:hub-content/SageMakerPublicHub/Model/{MODEL}/1.0.0"
ROLE = "arn:aws:iam::123456789012:role/session"
RUNTIME = "sagemakertrainingsessionruntime"
_PREFIX = "arn:aws:sagemaker:us-west-2:123456789012"
_STATUS = {"ThrottlingException": 429, "InternalServerException": 500, "ResourceNotFoundException": 404}
_NEEDED = {"target_tokens", "weights", "advantages", "logprobs"}


class Learner(Protocol):
    """What a policy behind the wire does; weights are values."""

    def new(self) -> Any: ...
    def sample(self, weights: Any, prompt: list[int], params: Mapping[str, Any]) -> list[Sampled]: ...


@dataclass
class Session:
    """One session: its weights, what its operations came to, and what it waits for."""

    weights: Any
    gradient: Any
    status: str = "Created"
    sequence: int = 0
    early: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """Operations that came before those ahead of them."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Operation ids by client token."""
    request: dict[str, Any] = field(default_factory=dict)


class FakeTrainingSession(FakeServer):
    """`packages` has the weights of every model package; `calls` the operations of both services, in order."""

    def __init__(self, policy: Any = None, *, starting: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.policy = policy
        self.starting = starting
        """How often a new session is described before it runs."""
        self.start_as = "Running"
        """What a new session becomes."""
        self.sessions: dict[str, Session] = {}
        self.packages: dict[str, tuple[Any, Any]] = {}
        """Weights and optimizer state by ARN."""
        self.loaded: set[str] = set()
        self.groups: set[str] = set()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.data: list[list[Seen]] = []
        self.optimizer: list[dict[str, Any]] = []
        self.losses: list[tuple[str, dict[str, float] | None]] = []
        self.sampled_from: Counter[str | None] = Counter()
        self.failing: dict[str, str] = {}
        """By operation (`optimizerStep`, …): the details of a failure."""
        self.faults: Callable[[str], str | None] = lambda operation: None
        """The error code with which to refuse a call of the runtime, or `cut` to answer nothing."""
        self.executed: list[tuple[int, str]] = []
        """Sequence numbers and kinds, in the order of execution."""
        self._operations: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._mutex = threading.RLock()

    @property
    def env(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-west-2"}
        keys["AWS_EC2_METADATA_DISABLED"] = "true"
        return keys | {f"AWS_ENDPOINT_URL_{name}": self.url for name in ("SAGEMAKER", RUNTIME.upper())}

    @property
    def trained(self) -> Any:
        """The weights of the session that was made last."""
        return list(self.sessions.values())[-1].weights

    def start_session(self, name: str) -> None:
        """A session that runs already."""
        new = None if self.policy is None else self.policy.new()
        group = f"{_PREFIX}:model-package-group/group"
        self.sessions[name] = Session(new, self._zero(), "Running", request={"ModelPackageGroupArn": group})

    def of(self, operation: str) -> list[dict[str, Any]]:
        """The members of all calls of an operation."""
        return [members for name, members in self.calls if name == operation]

    def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
        target = handler.headers.get("X-Amz-Target")
        operation, members = (target.partition(".")[2], body) if target else _route(handler.command, path, body)
        code = None if target else self.faults(operation)
        if code == "cut":
            raise Gone
        try:
            if code is not None:
                raise Refused(code, "injected")
            check_request("sagemaker" if target else RUNTIME, operation, members)
            with self._mutex:
                self.calls.append((operation, members))
                answer = getattr(self, f"_{operation}")(members)
        except Refused as refused:
            name, message = refused.args
            headers = {"x-amzn-ErrorType": name}
            return handler.json({"__type": name, "message": message}, _STATUS.get(name, 400), headers)
        if self.faults(f"{operation} answered") == "cut":
            raise Gone
        return handler.json(answer)

    # --- the control plane -------------------------------------------------------------------------------------------

    def _DescribeHubContent(self, members: dict[str, Any]) -> Any:
        if members["HubContentName"] != MODEL:
            raise Refused("ResourceNotFound", f"no model {members['HubContentName']}")
        return {"HubContentName": MODEL, "HubContentArn": HUB_ARN, "HubContentType": "Model"}

    def _DescribeModelPackageGroup(self, members: dict[str, Any]) -> Any:
        name = members["ModelPackageGroupName"]
        if name not in self.groups:
            raise Refused("ValidationException", f"ModelPackageGroup {name} does not exist")
        return {"ModelPackageGroupName": name, "ModelPackageGroupArn": f"{_PREFIX}:model-package-group/{name}"}

    def _CreateModelPackageGroup(self, members: dict[str, Any]) -> Any:
        self.groups.add(members["ModelPackageGroupName"])
        return {"ModelPackageGroupArn": f"{_PREFIX}:model-package-group/{members['ModelPackageGroupName']}"}

    def _CreateTrainingSession(self, members: dict[str, Any]) -> Any:
        name = members["TrainingSessionName"]
        if name in self.sessions:
            raise Refused("ResourceInUse", f"{name} exists")
        new = None if self.policy is None else self.policy.new()
        self.sessions[name] = Session(new, self._zero(), request=members)
        return {"TrainingSessionArn": f"{_PREFIX}:training-session/{name}"}

    def _DescribeTrainingSession(self, members: dict[str, Any]) -> Any:
        name = members["TrainingSessionName"]
        session = self.sessions.get(name)
        if session is None:
            raise Refused("ResourceNotFound", f"no session {name}")
        described = sum(asked["TrainingSessionName"] == name for asked in self.of("DescribeTrainingSession"))
        if session.status == "Created" and described >= self.starting:
            session.status = self.start_as
        detail = {"TrainingSessionName": name, "TrainingSessionStatus": session.status, "CreationTime": time.time()}
        detail |= {"TrainingSessionArn": f"{_PREFIX}:training-session/{name}"}
        detail |= {"ErrorDetails": "no capacity"} if session.status == "Failed" else {}
        detail["BillableTokenUsage"] = {"PrefillTokenCount": 5, "SampleTokenCount": 7, "TrainingTokenCount": 9}
        return {"TrainingSessionDetail": detail}

    def _StopTrainingSession(self, members: dict[str, Any]) -> Any:
        session = self.sessions.get(members["TrainingSessionName"])
        if session is None:
            raise Refused("ResourceNotFound", "no such session")
        session.status = "Stopped"
        return {}

    def _DescribeModelPackage(self, members: dict[str, Any]) -> Any:
        if members["ModelPackageName"] not in self.packages:
            raise Refused("ValidationException", f"ModelPackage {members['ModelPackageName']} does not exist")
        return {"ModelPackageArn": members["ModelPackageName"]}

    def _DeleteModelPackage(self, members: dict[str, Any]) -> Any:
        del self.packages[members["ModelPackageName"]]
        return {}

    # --- the runtime -------------------------------------------------------------------------------------------------

    def _ExecuteTrainingOperation(self, members: dict[str, Any]) -> Any:
        session = self._session(members)
        if members.get("clientToken") in session.tokens:
            return {"operationId": session.tokens[members["clientToken"]]}
        number = members["sequenceNumber"]
        if number <= session.sequence or number in session.early:
            raise Refused("ConflictException", f"the sequence number {number} was used")
        operation = self._operation()
        session.tokens[members["clientToken"]] = operation
        session.early[number] = operation, members["operationConfig"]
        while session.sequence + 1 in session.early:
            session.sequence += 1
            ready, request = session.early.pop(session.sequence)
            [(kind, config)] = request.items()
            self.executed.append((session.sequence, kind))
            self._finish(ready, kind, functools.partial(self._train, session, kind, config))
        return {"operationId": operation}

    def _ExecuteSamplingOperation(self, members: dict[str, Any]) -> Any:
        session = self._session(members)
        [(kind, config)] = members["operationConfig"].items()
        operation = self._operation()
        package = config.get("modelPackageArn")
        if package is not None and package not in self.packages:
            raise Refused("ResourceNotFoundException", f"no model package {package}")
        if kind == "loadWeightsForSampling":
            self.loaded.add(package)
            self._finish(operation, kind, dict)
            return {"operationId": operation}
        if package is not None and package not in self.loaded:
            raise Refused("ConflictException", f"{package} is not loaded")
        self.sampled_from[package] += 1
        weights = session.weights if package is None else self.packages[package][0]
        prompt = [token for chunk in config["prompt"]["chunks"] for token in chunk["tokens"]]
        if len(prompt) >= self.context_length:
            raise Refused("ValidationException", f"the prompt is longer than the context of {self.context_length}")
        work = lambda: self._sample(weights, prompt, config["samplingParams"])  # noqa: E731
        threading.Thread(target=self._finish, args=(operation, kind, work), daemon=True).start()
        return {"operationId": operation}

    def _GetTrainingOperationResult(self, members: dict[str, Any]) -> Any:
        return self._operations[members["operationId"]]

    _GetSamplingOperationResult = _GetTrainingOperationResult

    def _operation(self) -> str:
        operation = f"operation-{next(self._numbers)}"
        self._operations[operation] = {"status": "Pending"}
        return operation

    def _finish(self, operation: str, kind: str, work: Callable[[], Any]) -> None:
        if kind in self.failing:
            self._operations[operation] = {"status": "Failed", "errorDetails": self.failing[kind]}
            return
        try:
            self._operations[operation] = {"status": "Completed", "operationResult": {kind: work()}}
        except Refused as refused:
            self._operations[operation] = {"status": "Failed", "errorDetails": refused.args[1]}

    def _session(self, members: dict[str, Any]) -> Session:
        session = self.sessions.get(members["trainingSessionName"])
        if session is None:
            raise Refused("ResourceNotFoundException", "no such session")
        if session.status not in ("Running", "Blocked"):
            raise Refused("ConflictException", f"the session is {session.status}")
        return session

    # --- the model ---------------------------------------------------------------------------------------------------

    def _train(self, session: Session, kind: str, config: dict[str, Any]) -> Any:
        if kind in ("saveWeights", "saveState"):
            group = session.request["ModelPackageGroupArn"].rpartition("/")[2]
            package = f"{_PREFIX}:model-package/{group}/{next(self._numbers)}"
            self.packages[package] = session.weights, session.gradient
            return {"modelPackageArn": package}
        if kind == "loadState":
            if config["modelPackageArn"] not in self.packages:
                raise Refused("ValidationException", "no such model package")
            session.weights = self.packages[config["modelPackageArn"]][0]
            return {}
        if kind == "optimizerStep":
            adam = config["adamParamsConfig"]
            self.optimizer.append(adam)
            session.weights = self._step(session, adam)
            session.gradient = self._zero()
            return {"metrics": {"grad_norm": 1.0}}
        seen = [_seen(datum) for datum in config["datumList"]]
        self.data.append(seen)
        self.losses.append((config["lossFnName"], config.get("lossFnConfig")))
        return self._pass(session, seen, config)

    def _pass(self, session: Session, seen: list[Seen], config: dict[str, Any]) -> Any:
        if self.policy is None:
            return {"metrics": {}}
        loss = sum(self.policy.learn(session.weights, datum, session.gradient) for datum in seen)
        outputs = [_tensor(self.policy.logprobs(session.weights, datum)) for datum in seen]
        return {"metrics": {"loss": loss}, "lossFnOutputs": [{"logprobs": one} for one in outputs]}

    def _step(self, session: Session, adam: dict[str, Any]) -> Any:
        if self.policy is None:
            return session.weights
        return session.weights.moved(session.gradient, self.policy.scale * adam["learningRate"])

    def _zero(self) -> Any:
        return None if self.policy is None else self.policy.zero()

    def _sample(self, weights: Any, prompt: list[int], params: dict[str, Any]) -> Any:
        known = {"temperature": params.get("temperature", 1.0), "seed": params.get("seed"), "stop": []}
        known["max_tokens"] = min(params["maxTokens"], self.context_length - len(prompt))
        if self.policy is not None:
            sampled = self.policy.sample(weights, prompt, known)
        else:
            sampled = list(self.tokens(_Unhurried(), prompt, known))  # type: ignore[arg-type]
        sequence = {"tokens": [one[0] for one in sampled], "logprobs": [one[1] for one in sampled]}
        return {"sequences": [sequence | {"stopReason": sampled[-1][2]}]}


class _Unhurried:
    """In place of a handler: nobody hangs up on an operation."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def _route(method: str, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    _, _, _, name, kind, *rest = path.split("/")
    operation = {"operations": "TrainingOperation", "sampling-operations": "SamplingOperation"}[kind]
    if method == "GET":
        return f"Get{operation}Result", {"trainingSessionName": name, "operationId": rest[0]}
    return f"Execute{operation}", {"trainingSessionName": name, **body}


def _seen(datum: dict[str, Any]) -> Seen:
    tokens = [token for chunk in datum["modelInput"]["chunks"] for token in chunk["tokens"]]
    inputs = {name: tensor["data"] for name, tensor in datum["lossFnInputs"].items()}
    if inputs.keys() != _NEEDED or {len(values) for values in inputs.values()} != {len(tokens)}:
        raise Refused("ValidationException", f"a datum has {sorted(inputs)}")
    return Seen(tokens, inputs)


def _tensor(values: list[float]) -> dict[str, Any]:
    return {"data": values, "dtype": "float32", "shape": [len(values)]}


__all__ = ["HUB_ARN", "MODEL", "ROLE", "FakeTrainingSession", "ReplyPolicy", "Weights"]
