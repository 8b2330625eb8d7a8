"""A Tinker service as far as the wire shows: sessions, futures, protobuf, weights by name.

Two models. By itself it samples with arithmetic, as the other fakes do. With `replies` it has a policy that can learn
(`reply_policy.py`): `forward_backward` adds up its gradient, and `optim_step` takes a step along it.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

from .fake_server import FakeServer, Gone, Handler
from .reply_policy import ReplyPolicy, Seen, Weights

MODEL = "fake/model"
PROTOBUF = "application/x-protobuf"


@dataclass
class Model:
    """One that is being trained."""

    weights: Weights
    gradient: list[float] = field(default_factory=list)
    requests: int = 0
    """How many came so far: each has to carry the next number."""


class Future:
    """What a request will come to."""

    def __init__(self, work: Callable[[Future], Any]) -> None:
        self.done = threading.Event()
        self.cancelled = False
        self.answer: Any = None
        self._work = work
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self, seconds: float) -> None:
        """As a handler's: a pause that ends when nobody wants the result."""
        time.sleep(seconds)
        if self.cancelled:
            raise Gone

    def _run(self) -> None:
        try:
            self.answer = self._work(self)
        except Gone:
            self.answer = {"error": "cancelled", "category": "user"}
        except ValueError as error:
            self.answer = {"error": str(error), "category": "user"}
        self.done.set()


class FakeTinker(FakeServer):
    """`replies` are what the policy can say, as token ids; `data` has the data of each pass."""

    def __init__(self, replies: Sequence[Sequence[int]] = (), *, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.replies = [list(reply) for reply in replies]
        self._policy = ReplyPolicy(self.replies, seed)
        self.models: dict[str, Model] = {}
        self.saved: dict[str, Weights] = {}
        self.data: list[list[Seen]] = []
        self.losses: list[str] = []
        self.loss_configs: list[dict[str, float]] = []
        self.optimizer: list[dict[str, Any]] = []
        self.finished: list[dict[str, Any]] = []
        self.failing: dict[str, Any] = {}
        """Answers to give in place of results, by path: a dict is the future's, a number is a status."""
        self._samplers: dict[str, Weights] = {}
        self._futures: dict[str, Future] = {}
        self._numbers = itertools.count(1)

    @property
    def trained(self) -> Weights:
        """Of the model that was made last."""
        return list(self.models.values())[-1].weights

    def read(self, data: bytes, headers: Any) -> dict[str, Any]:
        if headers.get("Content-Type") == PROTOBUF:
            message = pb.ForwardBackwardRequest()
            message.ParseFromString(data)
            return {"message": message}
        return json.loads(data) if data else {}

    def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
        handler.close_connection = True  # the SDK leaves some of its connections to the garbage collector
        name = path.removeprefix("/api/v1/").replace("/", "_")
        if isinstance(self.failing.get(name), int):
            return _send(handler, {"detail": f"{name} is not to be had"}, self.failing[name])
        if handler.command == "DELETE":
            return _send(handler, self._delete(path))
        if name.startswith("sessions_"):
            self.finished.append(body)
            return _send(handler, None)
        answer = getattr(self, f"_{name}", None)
        if answer is None:
            return _send(handler, {"detail": "Not Found"}, 404)
        if name == "retrieve_future":
            return answer(handler, body)
        return _send(handler, answer(body))

    # --- what is answered at once ------------------------------------------------------------------------------------

    def _client_config(self, body: dict[str, Any]) -> Any:
        return {"sample_no_retries": False}

    def _client_dynamic_config(self, body: dict[str, Any]) -> Any:
        return {"sample_cancel_enabled": True}

    def _create_session(self, body: dict[str, Any]) -> Any:
        return {"session_id": f"session-{next(self._numbers)}"}

    def _session_heartbeat(self, body: dict[str, Any]) -> Any:
        return {}

    def _telemetry(self, body: dict[str, Any]) -> Any:
        return {"status": "accepted"}

    def _get_server_capabilities(self, body: dict[str, Any]) -> Any:
        return {"supported_models": [{"model_name": MODEL, "max_context_length": self.context_length}]}

    def _create_sampling_session(self, body: dict[str, Any]) -> Any:
        return {"sampling_session_id": self._sampler(self._weights(body.get("model_path")))}

    def _weights_info(self, body: dict[str, Any]) -> Any:
        self._weights(body["tinker_path"])
        return {"base_model": MODEL, "is_lora": True, "lora_rank": 8}

    def _delete(self, path: str) -> Any:
        """`…/training_runs/RUN/checkpoints/weights/NAME`."""
        run, _, kind, name = path.split("/")[-4:]
        del self.saved[f"tinker://{run}/{kind}/{name}"]

    def _cancel_future(self, body: dict[str, Any]) -> Any:
        self._futures[body["request_id"]].cancelled = True

    def _retrieve_future(self, handler: Handler, body: dict[str, Any]) -> None:
        future = self._futures[body["request_id"]]
        while not future.done.wait(0.01):
            handler.wait(0)
        _send(handler, future.answer)

    # --- what is a future --------------------------------------------------------------------------------------------

    def _promise(self, name: str, work: Callable[[Future], Any]) -> dict[str, Any]:
        request_id = f"request-{next(self._numbers)}"
        failure = self.failing.get(name)
        self._futures[request_id] = Future(work if failure is None else lambda _: failure)
        return {"request_id": request_id}

    def _create_model(self, body: dict[str, Any]) -> Any:
        model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
        self.models[model_id] = Model(self._policy.new(), [0.0] * len(self.replies))
        return self._promise("create_model", lambda _: {"model_id": model_id, "type": "create_model"})

    def _load_weights(self, body: dict[str, Any]) -> Any:
        self._model(body).weights = self._weights(body["path"])
        return self._promise("load_weights", lambda _: {"path": body["path"], "type": "load_weights"})

    def _save_weights(self, body: dict[str, Any]) -> Any:
        path = f"tinker://{body['model_id'].replace(':', '-')}/weights/{body['path']}"
        self.saved[path] = self._model(body).weights
        return self._promise("save_weights", lambda _: {"path": path, "type": "save_weights"})

    def _save_weights_for_sampler(self, body: dict[str, Any]) -> Any:
        weights = self._model(body).weights
        if body.get("path") is None:
            answer = {"sampling_session_id": self._sampler(weights)}
        else:
            answer = {"path": f"tinker://{body['model_id'].replace(':', '-')}/sampler_weights/{body['path']}"}
            self.saved[answer["path"]] = weights
        return self._promise("save_weights_for_sampler", lambda _: answer)

    def _optim_step(self, body: dict[str, Any]) -> Any:
        model = self._model(body)
        self.optimizer.append(body["adam_params"])
        model.weights = model.weights.moved(model.gradient, body["adam_params"]["learning_rate"])
        model.gradient = [0.0] * len(self.replies)
        return self._promise("optim_step", lambda _: {"metrics": {"grad_norm": 1.0}})

    def _forward_backward(self, body: dict[str, Any]) -> Any:
        message = body["message"]
        model = self._model({"model_id": message.model_id, "seq_id": message.seq_id})
        seen = [_seen(datum) for datum in message.data]
        self.data.append(seen)
        self.losses.append(message.loss_fn)
        self.loss_configs.append(dict(message.loss_fn_config))
        loss = sum(self._policy.learn(model.weights, datum, model.gradient) for datum in seen) if self.replies else 0.0
        output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
        output.metrics["loss:sum"] = loss
        _add_logprobs(output.loss_fn_outputs.add(), [self._logprobs(model, datum) for datum in seen])
        return self._promise("forward_backward", lambda _: output.SerializeToString())

    def _asample(self, body: dict[str, Any]) -> Any:
        promise = self._promise("asample", lambda future: self._sample(body, future))
        return promise | {"sample_sequence_ids": [f"{promise['request_id']}-{i}" for i in range(body["num_samples"])]}

    # --- the model ---------------------------------------------------------------------------------------------------

    def _sample(self, body: dict[str, Any], future: Future) -> bytes:
        prompt = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        params = body["sampling_params"]
        room = self.context_length - len(prompt)
        limit = params.get("max_tokens") or room
        if limit > room or room < 1:
            raise ValueError(f"{len(prompt)} tokens and {limit} to sample are more than the context of {room}")
        stop = params.get("stop") or []
        params = params | {"max_tokens": limit, "stop": stop, "ignore_eos": params.get("stop") is not None}
        if self.replies:
            sampled = self._policy.sample(self._samplers[body["sampling_session_id"]], prompt, params)
        else:
            sampled = list(self.tokens(future, prompt, params))  # type: ignore[arg-type]
        answer = pb.SampleResponse()
        sequence = answer.sequences.add()
        sequence.stop_reason = pb.STOP_REASON_LENGTH if sampled[-1][2] == "length" else pb.STOP_REASON_STOP
        sequence.tokens = np.array([token for token, _, _ in sampled], np.int32).tobytes()
        sequence.logprobs = np.array([value for _, value, _ in sampled], np.float32).tobytes()
        if k := body.get("topk_sample_logprobs"):
            top = sequence.topk_sampled_logprobs
            top.k, top.length = k, len(sampled)
            top.token_ids = np.array([[t + i for i in range(k)] for t, _, _ in sampled], np.int32).tobytes()
            top.logprobs = np.array([[x - i / 10 for i in range(k)] for _, x, _ in sampled], np.float32).tobytes()
        return answer.SerializeToString()

    def _logprobs(self, model: Model, datum: Seen) -> list[float]:
        """Of each target, with the weights as they are; those of the sampler where there is no policy."""
        if not self.replies:
            return datum.inputs["logprobs"]
        return self._policy.logprobs(model.weights, datum)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _model(self, body: dict[str, Any]) -> Model:
        """The model of a request, whose requests come in order."""
        model = self.models[body["model_id"]]
        model.requests += 1
        assert body["seq_id"] == model.requests, f"request {body['seq_id']} came as number {model.requests}"
        return model

    def _weights(self, path: str | None) -> Weights:
        return self._policy.new() if path is None else self.saved[path]

    def _sampler(self, weights: Weights) -> str:
        name = f"sampler-{next(self._numbers)}"
        self._samplers[name] = replace(weights)
        return name


def _send(handler: Handler, answer: Any, status: int = 200) -> None:
    kind, data = (PROTOBUF, answer) if isinstance(answer, bytes) else ("application/json", json.dumps(answer).encode())
    handler.data(data, kind, status, {"connection": "close"})


def _seen(datum: Any) -> Seen:
    tokens = [t for chunk in datum.model_input for t in np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()]
    kinds = {pb.DTYPE_INT64: np.int64, pb.DTYPE_FLOAT32: np.float32}
    inputs = {
        name: np.frombuffer(tensor.dense, kinds[tensor.dtype]).tolist() for name, tensor in datum.loss_fn_inputs.items()
    }
    return Seen(tokens, inputs)


def _add_logprobs(record: Any, logprobs: list[list[float]]) -> None:
    record.num_datums = len(logprobs)
    field = record.fields["logprobs"]
    field.dtype = pb.DTYPE_FLOAT32
    field.data = np.concatenate([np.array(one, np.float32) for one in logprobs]).tobytes()
    field.offsets = np.cumsum([0, *(4 * len(one) for one in logprobs)], dtype=np.int64).tobytes()
