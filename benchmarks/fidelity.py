"""What a trainer gets of what was sampled, for ours and two peers, under what clients do to a conversation's history.

A scripted agent takes six turns with tools; its client echoes each answer a little differently (spaces in arguments,
dropped reasoning, …), retries, compacts its history, or runs a sub-agent. Every sampled token has a logprob of its own,
so `exact` can count the tokens of the agent's turns that are trained with that logprob, in the very context they were
sampled in. Beside it: rows, tokens in them (what training costs), tokens trained ÷ tokens of the agent's turns.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.request import Request, urlopen

from aiohttp import web
from gateway_parts import Gateway, free_port, gateway, tokenizer
from report import write

from agentcore_rl_toolkit.cli.table import format_table
from agentcore_rl_toolkit.loop import PrivateLoop

Message = dict[str, Any]
GATEWAYS = ["ours", "rllm", "awslabs", "awslabs-linear"]
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": PARAMETERS}}
    for name in ("search", "lookup")
]
SYSTEM = {"role": "system", "content": "You find things out. Use the tools, then answer."}


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


SCRIPT = {
    "1": "<think>\nI should search first.\n</think>\n\n" + call("search", limit=3, query="café opening hours"),
    "2": "Two of them look right. I will look up the first.\n" + call("lookup", limit=1, query="Café Zwölf"),
    "3": "<think>\nThe hours differ by day.\n</think>\n\nLet me compare.\n" + call("search", limit=2, query="holidays"),
    "4": call("lookup", limit=1, query="Monday") + "\n" + call("lookup", limit=1, query="Sunday"),
    "5": "<think>\nOne more check.\n</think>\n\n" + call("search", limit=5, query="Café Zwölf closed"),
    "6": "<think>\nEnough.\n</think>\n\nIt opens at 8 on weekdays and at 10 on Sundays.",
    "a": call("search", limit=1, query="sub-question"),
    "b": "The sub-question's answer is 42.",
    # The same turn as a model might well spell it: other spaces, an escape, keys in another order.
    "own": '<tool_call>\n{"name":"search", "arguments":{"query":"caf\\u00e9","limit":3}}\n</tool_call>',
}
"""What the model samples; the last marker like [2] in a prompt says which."""


@dataclass
class Call:
    """One call of the engine."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]


class Engine:
    """A model that samples the script, with vLLM's wire: ids in, or messages in, parsed as well as can be."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer())
        self.calls: list[Call] = []
        self.port = free_port()

    def __enter__(self) -> Engine:
        self._loop = PrivateLoop("engine")
        self._loop.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/{path:.*}", self._health)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/inference/v1/generate", self._generate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "stub", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 32_768}
        return web.json_response({"object": "list", "data": [model]})

    def sample(self, prompt: list[int]) -> Call:
        markers = re.findall(r"\[(\w+)\]", self.tokenizer.decode(prompt[-400:]))
        ids = self.tokenizer.encode(SCRIPT[markers[-1]], add_special_tokens=False)
        ids.append(self.tokenizer.convert_tokens_to_ids("<|im_end|>"))
        number = len(self.calls)
        done = Call(prompt, ids, [-(1 + number * 1000 + n) / 2**20 for n in range(len(ids))])
        self.calls.append(done)
        return done

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        done = self.sample(body["prompt"])
        tokens = [self.tokenizer.decode([i]) for i in done.sampled]
        if body.get("stream"):
            return await self._stream(request, done, tokens)
        choice = self._completion_choice(done, tokens, 0, len(tokens)) | {"prompt_token_ids": done.prompt}
        return web.json_response(
            {"id": "c", "object": "text_completion", "created": 1, "model": "stub"} | usage(done, choice)
        )

    def _completion_choice(self, done: Call, tokens: list[str], start: int, stop: int) -> dict[str, Any]:
        ids, logprobs = done.sampled[start:stop], done.logprobs[start:stop]
        top = [{token: logprob} for token, logprob in zip(tokens[start:stop], logprobs, strict=True)]
        flat = {
            "tokens": tokens[start:stop],
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": [0] * len(ids),
        }
        finish = "stop" if stop == len(tokens) else None
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return {
            "index": 0,
            "text": text,
            "logprobs": flat,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": ids,
        }

    async def _stream(self, request: web.Request, done: Call, tokens: list[str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for n in range(len(tokens)):
            choice = self._completion_choice(done, tokens, n, n + 1)
            choice["prompt_token_ids"] = done.prompt if n == 0 else None
            event = {"id": "c", "object": "text_completion", "created": 1, "model": "stub", "choices": [choice]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _generate(self, request: web.Request) -> web.Response:
        done = self.sample((await request.json())["token_ids"])
        content = [{"token": f"token_id:{i}", "logprob": p} for i, p in zip(done.sampled, done.logprobs, strict=True)]
        choice = {"index": 0, "token_ids": done.sampled, "logprobs": {"content": content}, "finish_reason": "stop"}
        return web.json_response({"request_id": "r", "choices": [choice]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = [as_template(message) for message in body["messages"]]
        prompt = self.tokenizer.apply_chat_template(
            messages, tools=body.get("tools"), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        done = self.sample(list(prompt))
        message = parse(self.tokenizer.decode(done.sampled, skip_special_tokens=True), len(self.calls))
        content = [
            {"token": self.tokenizer.decode([i]), "logprob": p, "bytes": None, "top_logprobs": []}
            for i, p in zip(done.sampled, done.logprobs, strict=True)
        ]
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": finish}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "stub", "prompt_token_ids": done.prompt}
        return web.json_response(head | usage(done, choice | {"token_ids": done.sampled}))


def usage(done: Call, choice: dict[str, Any]) -> dict[str, Any]:
    counts = {"prompt_tokens": len(done.prompt), "completion_tokens": len(done.sampled)}
    return {"choices": [choice], "usage": counts | {"total_tokens": sum(counts.values())}}


def as_template(message: Message) -> Message:
    """A message as vLLM hands it to the template: text joined, arguments parsed."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    changed = message | {"content": content or ""}
    if calls := message.get("tool_calls"):
        functions = [call["function"] for call in calls]
        changed["tool_calls"] = [{"function": f | {"arguments": json.loads(f["arguments"])}} for f in functions]
    return changed


def parse(text: str, number: int) -> Message:
    """A sampled text as a message, with what belongs to the format and not to the content taken away."""
    message: Message = {"role": "assistant"}
    if "</think>" in text:
        thought, text = text.split("</think>", 1)
        message["reasoning_content"] = thought.removeprefix("<think>").strip("\n")
    calls = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", text, re.DOTALL)
    message["content"] = text.split("<tool_call>")[0].strip("\n") or None
    if calls:
        functions = [json.loads(one) for one in calls]
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{n}",
                "type": "function",
                "function": {"name": f["name"], "arguments": json.dumps(f["arguments"], ensure_ascii=False)},
            }
            for n, f in enumerate(functions)
        ]
    return message


# --- the agent -----------------------------------------------------------------------------------------------------


@dataclass
class Agent:
    """An agent whose client changes what it echoes."""

    gateway: Gateway
    engine: Engine
    change: Callable[[Message], Message]
    retries: bool = False
    taken: list[Call] = field(default_factory=list)
    """The engine's calls whose answers the agent went on with."""

    def __post_init__(self) -> None:
        self.path, header, self.session = self.gateway.sessions(1)[0]
        self.header = header.split(": ")

    def ask(self, messages: list[Message], again: bool = False) -> Message:
        body = {"model": "stub", "messages": messages, "tools": TOOLS, "max_tokens": 512, "temperature": 1.0}
        headers = {
            "content-type": "application/json",
            "x-stainless-retry-count": str(int(again)),
            self.header[0]: self.header[1],
        }
        request = Request(f"http://127.0.0.1:{self.gateway.port}{self.path}", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=30) as response:
            message: Message = json.loads(response.read())["choices"][0]["message"]
        return message

    def turn(self, messages: list[Message]) -> None:
        """One model call; the answer is echoed, and the tools' results follow."""
        before = len(self.engine.calls)
        answer = self.ask(messages)
        if self.retries:  # the client lost the answer and asks once more
            answer = self.ask(messages, again=True)
        if len(self.engine.calls) == before:
            raise SystemExit(f"{self.gateway.name} answered a new turn without asking the engine")
        self.taken.append(self.engine.calls[-1])
        sampled = self.engine.tokenizer.decode(self.taken[-1].sampled)
        if len(answer.get("tool_calls") or []) != sampled.count("<tool_call>"):
            raise SystemExit(f"{self.gateway.name} made {answer!r} of {sampled!r}")
        messages.append(self.change(answer))

    def results(self, messages: list[Message], marker: str) -> None:
        for n, one in enumerate(messages[-1].get("tool_calls") or []):
            result = {"role": "tool", "tool_call_id": one["id"], "content": f"result {n}: 12 rows [{marker}]"}
            messages.append(result)

    def six_turns(self, first: str = "1") -> list[Message]:
        messages = [SYSTEM, {"role": "user", "content": f"When does the café open? [{first}]"}]
        self.turn(messages)
        for marker in "23456":
            self.results(messages, marker)
            self.turn(messages)
        return messages


def plain(agent: Agent) -> int:
    agent.six_turns()
    return 1


def own_spelling(agent: Agent) -> int:
    agent.six_turns("own")
    return 1


def compaction(agent: Agent) -> int:
    """After three turns the client replaces the history by a summary."""
    messages = [SYSTEM, {"role": "user", "content": "When does the café open? [1]"}]
    for marker in "234":
        agent.turn(messages)
        agent.results(messages, marker)
    messages[1:] = [{"role": "user", "content": "So far: two cafés found, hours differ. Go on. [4]"}]
    agent.turn(messages)
    for marker in "56":
        agent.results(messages, marker)
        agent.turn(messages)
    return 2


def sub_agent(agent: Agent) -> int:
    """Between two turns a sub-agent with a prompt of its own works in the same session."""
    messages = [SYSTEM, {"role": "user", "content": "When does the café open? [1]"}]
    for marker in "23":
        agent.turn(messages)
        agent.results(messages, marker)
    sub = [{"role": "system", "content": "You answer one question."}, {"role": "user", "content": "Which? [a]"}]
    agent.turn(sub)
    agent.results(sub, "b")
    agent.turn(sub)
    for marker in "456":
        agent.turn(messages)
        agent.results(messages, marker)
    agent.turn(messages)
    return 2


# --- what clients do -----------------------------------------------------------------------------------------------


def same(message: Message) -> Message:
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def on_arguments(change: Callable[[dict[str, Any]], str]) -> Callable[[Message], Message]:
    def apply(message: Message) -> Message:
        calls = []
        for one in message.get("tool_calls") or []:
            function = one["function"]
            calls.append(one | {"function": function | {"arguments": change(json.loads(function["arguments"]))}})
        return same(message) | ({"tool_calls": calls} if calls else {})

    return apply


def on_content(change: Callable[[str], Any]) -> Callable[[Message], Message]:
    def apply(message: Message) -> Message:
        return same(message) | ({"content": change(message["content"])} if message.get("content") else {})

    return apply


def split_parts(text: str) -> list[Message]:
    half = len(text) // 2
    return [{"type": "text", "text": part} for part in (text[:half], text[half:])]


def no_reasoning(message: Message) -> Message:
    return {key: value for key, value in same(message).items() if not key.startswith("reasoning")}


def null_content(message: Message) -> Message:
    return same(message) | {"content": message.get("content") or None}


def empty_content(message: Message) -> Message:
    return same(message) | {"content": message.get("content") or ""}


def new_ids(message: Message) -> Message:
    calls = [one | {"id": f"tool_{n}_{len(one['id'])}"} for n, one in enumerate(message.get("tool_calls") or [])]
    return same(message) | ({"tool_calls": calls} if calls else {})


def everything(message: Message) -> Message:
    spaced = on_arguments(lambda a: json.dumps(dict(reversed(a.items())), separators=(" , ", " : ")))
    return new_ids(no_reasoning(on_content(lambda t: split_parts(t + " "))(spaced(null_content(message)))))


CASES: dict[str, tuple[Callable[[Agent], int], Callable[[Message], Message]]] = {
    "nothing": (plain, same),
    "arguments with other spaces": (plain, on_arguments(lambda a: json.dumps(a, separators=(" , ", " : ")))),
    "arguments in another order": (plain, on_arguments(lambda a: json.dumps(dict(reversed(a.items()))))),
    "whitespace added to text": (plain, on_content(lambda text: f"{text}\n")),
    "whitespace stripped off text": (plain, on_content(str.strip)),
    "reasoning dropped": (plain, no_reasoning),
    "null for empty content": (plain, null_content),
    'content "" for null': (plain, empty_content),
    "text split into parts": (plain, on_content(split_parts)),
    "other tool-call ids": (plain, new_ids),
    "all of these": (plain, everything),
    "HTTP retry of every call": (plain, same),
    "the model's own JSON spelling": (own_spelling, same),
    "compaction": (compaction, same),
    "sub-agent": (sub_agent, same),
}


# --- rows ----------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A training row: as many of each."""

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]


def rows(agent: Agent) -> list[Row]:
    """A session's training rows, as each system's trainer gets them."""
    answer = agent.gateway.ask(*agent.gateway.read_path(agent.session))
    if agent.gateway.name.startswith("rllm"):
        return fold(answer)
    made = []
    for row in answer["rows"]:
        missing = len(row["token_ids"]) - len(row["loss_mask"])  # the second peer leaves the first prompt out
        mask, logprobs = [0] * missing + row["loss_mask"], [0.0] * missing + row["logprobs"]
        made.append(Row(row["token_ids"], [int(one) for one in mask], logprobs))
    return made


def fold(traces: list[dict[str, Any]]) -> list[Row]:
    """The first peer gives turns; its trainer folds a turn into the last one if that is how its prompt starts."""
    made: list[Row] = []
    for trace in traces:
        prompt, sampled = trace["prompt_token_ids"], trace["completion_token_ids"]
        if not made or prompt[: len(made[-1].token_ids)] != made[-1].token_ids:
            made.append(Row([], [], []))
        row = made[-1]
        new = prompt[len(row.token_ids) :]
        row.token_ids += new + sampled
        row.loss_mask += [0] * len(new) + [1] * len(sampled)
        row.logprobs += [0.0] * len(new) + (trace["logprobs"] or [0.0] * len(sampled))
    return made


def exact(taken: list[Call], made: list[Row]) -> int:
    """Tokens of the agent's turns that some row trains as they were sampled: context, id and logprob."""
    count = 0
    for turn in taken:
        start, stop = len(turn.prompt), len(turn.prompt) + len(turn.sampled)
        holding = [row for row in made if row.token_ids[:stop] == turn.prompt + turn.sampled]
        trained = [row.logprobs[start:stop] for row in holding if all(row.loss_mask[start:stop])]
        count += max((near(one, turn.logprobs) for one in trained), default=0)
    return count


def near(some: list[float], others: list[float]) -> int:
    return sum(abs(a - b) < 1e-7 for a, b in zip(some, others, strict=True))


def measure(started: Gateway, engine: Engine, case: str) -> dict[str, Any]:
    conversation, change = CASES[case]
    engine.calls.clear()
    agent = Agent(started, engine, change, retries=case.startswith("HTTP retry"))
    expected = conversation(agent)
    made = rows(agent)
    sampled, trained = sum(len(turn.sampled) for turn in agent.taken), sum(sum(row.loss_mask) for row in made)
    return {
        "rows": len(made),
        "rows_expected": expected,
        "tokens": sum(len(row.token_ids) for row in made),
        "engine_sampled": sum(len(turn.sampled) for turn in engine.calls),
        "sampled": sampled,
        "trained": trained,
        "trained_share": round(trained / sampled, 3),
        "exact_share": round(exact(agent.taken, made) / sampled, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", default=",".join(GATEWAYS))
    parser.add_argument("--quick", action="store_true", help="write no file")
    args = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {case: {} for case in CASES}
    names = args.gateways.split(",")
    with Engine() as engine:
        for name in names:
            with gateway(name, engine.port) as started:
                for case in CASES:
                    figures[case][name] = measure(started, engine, case)
    table = []
    for case, of in figures.items():
        cells = [
            f"{f['rows']} / {f['tokens']} / {f['trained_share']:.2f} / {f['exact_share']:.2f}" for f in of.values()
        ]
        table.append([case, str(next(iter(of.values()))["rows_expected"]), *cells])
    print("rows / tokens in them / trained ÷ sampled / exactly as sampled ÷ sampled\n")
    print(format_table(["what the client does", "rows expected", *names], table))
    if not args.quick:
        write("fidelity", {"cases": figures})


if __name__ == "__main__":
    main()
