"""The first toolkit's Strands helpers: an app that makes the model, and a hook that collects the conversation.

New agents need neither: they call `app.model_endpoint(payload)`, and the gateway records the turns. Needs the extra
`strands`.
"""

from __future__ import annotations

import copy
from typing import Any

from ..config import AgentCoreConfig
from ..errors import ConfigError
from .app import AgentCoreRLApp

try:
    from strands.hooks import (
        AfterInvocationEvent,
        AfterModelCallEvent,
        BeforeInvocationEvent,
        BeforeModelCallEvent,
        HookProvider,
        HookRegistry,
    )
    from strands.models.openai import OpenAIModel
except ImportError as error:
    raise ImportError(
        f"{error}\nhint: pip install 'agentcore-rl-toolkit[strands]'", name=error.name, path=error.path
    ) from error


class StrandsAgentCoreRLApp(AgentCoreRLApp):
    """`AgentCoreRLApp` that also makes the Strands model of the policy."""

    def create_openai_compatible_model(self, **kwargs: Any) -> OpenAIModel:
        """An `OpenAIModel` for the endpoint `BASE_URL`, with the key `MODEL_API_KEY`, and the model `MODEL_ID`.

        Keyword arguments go to `OpenAIModel` and win over the environment.
        """
        config = AgentCoreConfig.load()
        model_id = kwargs.pop("model_id", None) or self.config.model_id or config.model_id
        endpoint = self.config if self.config.base_url else config
        client_args = {"api_key": endpoint.model_api_key or "EMPTY", "base_url": endpoint.base_url}
        given = kwargs.pop("client_args", None) or {}
        if given.get("base_url"):
            client_args["api_key"] = "EMPTY"  # the key is for the configured endpoint only
        client_args |= given
        missing = [n for n, v in (("BASE_URL", client_args["base_url"]), ("MODEL_ID", model_id)) if not v]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} must be set to create the model",
                hint="set BASE_URL to the policy's OpenAI-compatible endpoint and MODEL_ID to its model name",
            )
        return OpenAIModel(client_args=client_args, model_id=str(model_id), **kwargs)


class StrandsRolloutCollector(HookProvider):
    """A Strands hook that collects each model call of an invocation: the messages sent, and the reply.

    Each invocation starts a new collection; agents that the agent calls as tools add to the same one.
    """

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._sent: dict[int, list[Any]] = {}
        self._depth = 0

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Called by Strands."""
        registry.add_callback(BeforeInvocationEvent, self._before_invocation)
        registry.add_callback(AfterInvocationEvent, self._after_invocation)
        registry.add_callback(BeforeModelCallEvent, self._before_model_call)
        registry.add_callback(AfterModelCallEvent, self._after_model_call)

    def get_rollout_data(self) -> list[dict[str, Any]]:
        """One entry per model call: `messages` as they were sent, `response` as it came, `stop_reason`."""
        return copy.deepcopy(self._calls)

    def _before_invocation(self, event: BeforeInvocationEvent) -> None:
        if self._depth == 0:
            self._calls, self._sent = [], {}
        self._depth += 1

    def _after_invocation(self, event: AfterInvocationEvent) -> None:
        self._depth = max(0, self._depth - 1)

    def _before_model_call(self, event: BeforeModelCallEvent) -> None:
        self._sent[id(event.agent)] = [_sent(message) for message in event.agent.messages]

    def _after_model_call(self, event: AfterModelCallEvent) -> None:
        messages = self._sent.pop(id(event.agent), [])
        if event.stop_response is None:  # the call failed
            return
        reply = _sent(event.stop_response.message)
        self._calls.append({"messages": messages, "response": reply, "stop_reason": event.stop_response.stop_reason})


def _sent(message: Any) -> dict[str, Any]:
    """The part of a Strands message that the model receives."""
    return {"role": message["role"], "content": copy.deepcopy(message["content"])}
