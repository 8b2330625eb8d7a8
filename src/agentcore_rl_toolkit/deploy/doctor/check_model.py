"""A model's template and tool parser against this agent: what would be rendered anew, what could not be parsed.

The agent runs again, with the model's own tokenizer in the gateway and a script that speaks the model's format; a
recorded conversation is replayed the same way. No weights are needed.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...engine.base import SampleRequest
from ...engine.scripted import ScriptedEngine
from ...errors import AgentCoreRLError, ConfigError, RenderFault
from ...gateway.call.chat import ChatCall
from ...gateway.gateway import Gateway
from ...gateway.record.trajectory import Fidelity
from ...gateway.render.renderer import ChatRenderer
from ...gateway.render.tokenizer import Tokenizer
from ...runtime.local import AgentSource
from .check import Check, failed, ok, refused, skipped
from .check_agent import Script, rehearse
from .scripted_policy import ANSWER, call_message, seen_tools, speak

_USER = {"role": "user", "content": "Use the tool."}


def script_for(renderer: ChatRenderer, tools: list[dict[str, Any]]) -> Script:
    """A policy that calls the first tool once, and then answers, in the model's own format."""
    said = [call_message(tools[0])] if tools else []
    lines = [speak(renderer, [_USER], message, tools) for message in [*said, {"role": "assistant", "content": ANSWER}]]
    asked = 0

    def say(request: SampleRequest) -> Sequence[int]:
        nonlocal asked
        asked += 1
        return lines[min(asked, len(lines)) - 1]

    return say


def first_script(tokenizer: Tokenizer) -> tuple[Script, list[dict[str, Any]]]:
    """A policy in the built-in model's format, and the tools, once it has seen them."""
    renderer = ChatRenderer(tokenizer)
    tools: list[dict[str, Any]] = []

    def say(request: SampleRequest) -> Sequence[int]:
        seen = tokenizer.decode(list(request.prompt))
        tools[:] = tools or seen_tools(seen)
        call = bool(tools) and "<tool_response>" not in seen
        message = call_message(tools[0]) if call else {"role": "assistant", "content": ANSWER}
        return speak(renderer, [_USER], message, tools)

    return say, tools


def check_tools(renderer: ChatRenderer, tools: list[dict[str, Any]]) -> Check:
    """Every tool is shown by the template, and a call of it is parsed as what it was."""
    if not tools:
        return skipped("tools", "the agent shows the model none")
    try:
        shown = renderer.tokenizer.decode(list(renderer.render(ChatCall([_USER], tools))))
        for tool in tools:
            name = tool["function"]["name"]
            if name not in shown:
                fix = "give a template that shows tools (--chat-template), or another model"
                return failed("tools", f"the model's chat template leaves out the tool {name!r}", fix)
            if (problem := _round_trip(renderer, tools, tool)) is not None:
                fix = "choose another --renderer, or a model whose format it knows"
                return failed("tools", f"a call of {name!r} in this model's format is {problem}", fix)
    except RenderFault as fault:
        return failed("tools", str(fault), "give another template (--chat-template), or another model")
    return ok("tools", f"calls of {', '.join(tool['function']['name'] for tool in tools)} are parsed as what they were")


def _round_trip(renderer: ChatRenderer, tools: list[dict[str, Any]], tool: dict[str, Any]) -> str | None:
    message = call_message(tool)
    ids = speak(renderer, [_USER], message, tools)
    prompt = list(renderer.render(ChatCall([_USER], tools)))
    reply = renderer.parse(ids, prompt[-64:], ChatCall([_USER], tools), "doctor")
    wanted = message["tool_calls"][0]["function"]
    if reply.parse_failures or not reply.tool_calls:
        return f"not parsed: {renderer.tokenizer.decode(ids)[:120]!r}"
    found = reply.tool_calls[0]
    if (found.name, json.loads(found.arguments)) != (wanted["name"], wanted["arguments"]):
        return f"parsed as {found.name}({found.arguments[:80]})"
    return None


def check_fidelity(name: str, known: Fidelity) -> Check:
    """Whether what the model samples can be trained on, exactly and in one row."""
    later = known.bridges + known.renders
    if known.parse_failures:
        fix = "choose another --renderer, or a model whose tool format it knows"
        return failed(name, f"{known.parse_failures} tool calls could not be parsed", fix)
    if known.renders:
        return failed(
            name,
            f"{known.renders} of {later} later prompts would be rendered anew, so a rollout is {known.rows} rows",
            "have the agent send its history back as it was, or choose another --renderer or --chat-template",
        )
    share = known.trained / known.sampled if known.sampled else 0.0
    text = f"{known.turns} model calls, every later prompt went on from the exact tokens, {share:.0%} would be trained"
    return ok(name, text)


def check_model(
    agent: AgentSource,
    payload: dict[str, Any],
    tools: list[dict[str, Any]],
    renderer: ChatRenderer,
    seconds: float,
) -> tuple[list[Check], int | None]:
    """The agent with this model's template; and the longest prompt."""
    try:
        done = rehearse(agent, payload, script_for(renderer, tools), renderer.tokenizer, seconds)
    except (AgentCoreRLError, RenderFault) as error:
        return [failed("template", f"the agent can't run with this model's template: {error}")], None
    return [check_fidelity("template", done.turns.fidelity)], max(map(len, done.prompts), default=None)


def check_conversation(path: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> Check:
    """A recorded conversation, replayed as its agent sent it."""
    name = "conversation"
    try:
        messages, tools = read_conversation(path)
        renderer = ChatRenderer(tokenizer, **settings)
        places = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i]
        if not places:
            return failed(
                name, f"{path} has no reply of a model", 'record {"messages": […], "tools": […]} of a whole run'
            )
        lines = [speak(renderer, messages[:i], _canonical(messages[i]), tools) for i in places]
        engine = ScriptedEngine(lines, context_length=10_000_000)
        with Gateway(engine, tokenizer=tokenizer, **settings) as gateway:
            session = gateway.open_session()
            for i in places:
                _ask(session["base_url"], {"model": "scripted", "messages": messages[:i], "tools": tools or None})
            return check_fidelity(name, gateway.trajectories(session["session_id"]).fidelity)
    except ConfigError as error:
        return refused(name, error)
    except RenderFault as fault:
        return failed(name, str(fault), "give another template (--chat-template), or another model")


def read_conversation(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools as OpenAI's Chat Completions have them."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        messages, tools = (found, []) if isinstance(found, list) else (found["messages"], found.get("tools") or [])
        if not all(isinstance(message, dict) and "role" in message for message in messages):
            raise ValueError("a message is an object with a role")
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = 'expected {"messages": […], "tools": […]}, as Chat Completions have them'
        raise ConfigError(f"--conversation {path}: {error}", hint=hint) from None
    return messages, tools


def _canonical(message: dict[str, Any]) -> dict[str, Any]:
    """An assistant's message with its tool arguments as objects."""
    calls = [
        call | {"function": call["function"] | {"arguments": _object(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or []
    ]
    known = {"role": "assistant", "content": message.get("content") or ""}
    return known | ({"tool_calls": calls} if calls else {})


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _ask(base_url: str, body: dict[str, Any]) -> None:
    data = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
    except OSError as error:
        detail = error.read().decode(errors="replace")[:300] if hasattr(error, "read") else error
        raise ConfigError(f"the conversation can't be replayed: {detail}") from None


def check_context(longest: int | None, context: int | None, max_tokens: int) -> Check:
    """Whether the longest prompt and a reply fit."""
    if longest is None or context is None:
        return skipped(
            "context", "the model's context length is not known; give --context" if longest else "no prompts"
        )
    text = (
        f"the longest prompt has {longest} tokens; with {max_tokens} for a reply, {longest + max_tokens} of {context}"
    )
    if longest + max_tokens > context:
        return failed("context", text, "shorten prompts or tools' descriptions, lower --max-tokens, or raise --context")
    return ok("context", text)


def context_length(model: str) -> int | None:
    """What a model's folder says of it."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    return int(found) if found else None
