"""Each family that sees: prompts have the tokens of Transformers' processor; and why the other families see nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from transformers import AutoImageProcessor

from agentcore_rl_toolkit.backends.settings import LoopSettings, RolloutSettings
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.call.chat import ChatCall
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.template_reply import encode_template_reply
from support.image_families import (
    IMAGE_FAMILIES,
    INKLING,
    InklingPatches,
    InklingTextProcessor,
    template_folders,
    write_family,
)
from support.tokenizers import make_tokenizer
from support.vlm import data_url, picture

RED, BLUE = picture("red"), picture("blue", (64, 160))
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}}}}  # fmt: skip
USER = {"role": "user", "content": "hi"}
TEXT = {"role": "assistant", "content": "It is red."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"at": "the door"}}}],
}


class SeeingEngine(ScriptedEngine):
    """Takes images, and says what the script has."""

    images = True


@pytest.fixture(scope="module", params=IMAGE_FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name: str = request.param
    return name, write_family(name, tmp_path_factory.mktemp("checkpoint"))


@contextmanager
def running(folder: Path, *replies: dict[str, Any]) -> Iterator[tuple[Gateway, SeeingEngine]]:
    said: list[list[int]] = []
    engine = SeeingEngine(lambda _: said.pop(0))
    with Gateway(engine, tokenizer=str(folder)) as gateway:
        said += [sampled(gateway.core.renderer, reply) for reply in replies]
        yield gateway, engine


def sampled(renderer: ChatRenderer, reply: dict[str, Any]) -> list[int]:
    """What a model of this family samples to give the reply."""

    def prompt(messages: list[Any], tools: list[Any]) -> list[int]:
        return renderer.render(ChatCall(messages, tools)).tolist()

    return encode_template_reply(renderer.tokenizer, prompt, renderer.stops, [USER], reply, [TOOL])


def sent(content: Any) -> Any:
    """Parts as an agent sends them; `bytes` are images."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in content
    ]


def shown(content: Any) -> Any:
    """The same parts as Transformers' processor takes them."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": Image.open(io.BytesIO(part))}
        for part in content
    ]


def wanted(name: str, messages: list[Any]) -> list[int]:
    processor = IMAGE_FAMILIES[name].processor(name)
    made = processor.apply_chat_template(
        messages, tools=[TOOL], tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="np"
    )
    ids: list[int] = made["input_ids"][0].tolist()
    return ids


def pad_id(name: str) -> int:
    found: int = IMAGE_FAMILIES[name].processor(name).tokenizer.convert_tokens_to_ids(IMAGE_FAMILIES[name].pad)
    return found


def ask(session: dict[str, Any], messages: list[Any]) -> dict[str, Any]:
    body = {"messages": messages, "tools": [TOOL], "max_tokens": 200}
    response = httpx.post(f"{session['base_url']}/chat/completions", json=body, timeout=60)
    response.raise_for_status()
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return {name: value for name, value in message.items() if value is not None}


def test_a_session_is_one_row_with_the_tokens_of_the_processor(family: tuple[str, Path]):
    name, folder = family
    parts: list[list[Any]] = [[" what is ", RED, " beside ", BLUE, "? "], [RED], [" seen: ", BLUE, "\n"], ["and ", RED]]
    with running(folder, CALL, TEXT, TEXT) as (gateway, engine):
        assert gateway.abilities.line.startswith(f"renderer {IMAGE_FAMILIES[name].renderer}: ")
        assert gateway.abilities.line.endswith("; shows images")
        session = gateway.open_session()
        asked: list[Any] = [{"role": "system", "content": "Be brief."}]
        known = list(asked)
        for content in parts[:2]:
            asked.append({"role": "user", "content": sent(content)})
            known.append({"role": "user", "content": shown(content)})
        whole = [wanted(name, known)]
        reply = ask(session, asked)
        asked += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": sent(parts[2])}]
        known += [CALL, {"role": "tool", "tool_call_id": "call_1", "content": shown(parts[2])}]
        whole.append(wanted(name, known))
        asked += [ask(session, asked), {"role": "user", "content": sent(parts[3])}]
        known += [TEXT, {"role": "user", "content": shown(parts[3])}]
        whole.append(wanted(name, known))
        ask(session, asked)
        (row,) = gateway.trajectories(session["session_id"]).rows
        prompts = [request.prompt.tolist() for request in engine.requests]
        said = sampled(gateway.core.renderer, TEXT)
    assert prompts[:2] == whole[:2]
    added = prompts[2][len(prompts[1]) + len(said) :]  # earlier thoughts, which the template drops, stay
    assert (prompts[2][: -len(added)], added) == (prompts[1] + said, whole[2][-len(added) :])
    pad = pad_id(name)
    counts = [prompt.count(pad) for prompt in prompts]
    assert counts == [ids.count(pad) for ids in whole]
    assert len(row.images) == 5
    for image in row.images:
        around = row.token_ids[image.start - 1 : image.start + image.length + 1].tolist()
        assert [token == pad for token in around] == [False, *[True] * image.length, False]
    assert [(image.offset, image.length) for image in engine.requests[-1].images] == [image[:2] for image in row.images]
    assert {image.token for image in engine.requests[-1].images} == {pad}


def test_text_that_spells_an_image_token_is_text(family: tuple[str, Path]):
    name, folder = family
    pad = IMAGE_FAMILIES[name].pad
    with running(folder, TEXT) as (gateway, engine):
        ask(gateway.open_session(), [{"role": "user", "content": sent([f"say {pad}", RED, pad])}])
        (image,) = engine.requests[0].images
        assert engine.requests[0].prompt.tolist().count(pad_id(name)) == image.length


@contextmanager
def caught(caplog: pytest.LogCaptureFixture, tokenizer: Any, **settings: Any) -> Iterator[tuple[Gateway, list[str]]]:
    """A gateway, and what it said of images when it started."""
    caplog.clear()
    with Gateway(SeeingEngine([[5, 6]]), tokenizer=tokenizer, **settings) as gateway:
        yield gateway, [record.getMessage() for record in caplog.records if "images" in record.getMessage()]


def by_name(renderer: str, name: str, *more: str) -> Any:
    tokenizer = make_tokenizer(name, None, renderer)
    tokenizer.add_special_tokens({"additional_special_tokens": list(more)})
    return tokenizer


SAYS = "this vision model reads placeholders for images, which are counted: "
OTHERS = {
    "kimi": (lambda: by_name("kimi-k2.5", "moonshotai/Kimi-K2.5"), "its renderer writes one token for each image"),
    "nemotron": (
        lambda: by_name("nemotron-3.5", "nvidia/NVIDIA-Nemotron-3.5-Super-EA-09112026", "<image>"),
        "its image processor is code of the checkpoint",
    ),
    "another template": (lambda: template_folders.make_tokenizer("qwen2_5_vl"), "no renderer knows how many tokens"),
    "no processor": (lambda: template_folders.make_tokenizer("qwen3_vl"), "its image processor can't be loaded: "),
    "a text model": (lambda: by_name("nemotron-3.5", "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16"), None),
    "a text model with tokens for images": (lambda: template_folders.make_tokenizer("qwen3_instruct_2507"), None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_start_says_why_a_vision_model_sees_nothing(name: str, caplog: pytest.LogCaptureFixture):
    make, why = OTHERS[name]
    with caught(caplog, make()) as (gateway, said):
        assert len(said) == (why is not None)
        assert all(line.startswith(f"{SAYS}{why}") for line in said)
        assert "shows images" not in gateway.abilities.line
        session = gateway.open_session()
        messages = [{"role": "user", "content": sent(["hi", RED])}]
        httpx.post(f"{session['base_url']}/chat/completions", json={"messages": messages}).raise_for_status()
        assert gateway.trajectories(session["session_id"]).fidelity.omitted == {"image": 1}


def test_inkling_has_the_tokens_of_its_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(AutoImageProcessor, "from_pretrained", lambda _: InklingPatches())
    tokenizer = by_name("qwen3", "thinkingmachines/Inkling", *INKLING)
    pad, said = tokenizer.convert_tokens_to_ids("<|unused_200054|>"), "<|content_text|>It is red.<|end_message|>"
    reply = tokenizer.encode(f"{said}<|content_model_end_sampling|>", add_special_tokens=False)
    engine = SeeingEngine([reply, reply])
    with Gateway(engine, tokenizer=tokenizer) as gateway:
        assert gateway.abilities.line.endswith("; shows images")
        session = gateway.open_session()
        asked: list[Any] = [{"role": "user", "content": sent([" what is ", RED, " beside ", BLUE, "? "])}]
        asked += [ask(session, asked), {"role": "user", "content": sent(["and ", BLUE])}]
        ask(session, asked)
        (row,) = gateway.trajectories(session["session_id"]).rows
    prompt = engine.requests[1].prompt.tolist()
    text = re.sub(r"(<\|unused_200054\|>)+", "<|unused_200054|>", tokenizer.decode(prompt))
    images = [part["image"] for part in shown([RED, BLUE, BLUE])]
    made = InklingTextProcessor(None, InklingPatches(), tokenizer)(text=[text], images=images)
    assert prompt == made["input_ids"][0]
    assert [image.length for image in row.images] == [6, 8, 8]
    assert all(set(prompt[image.start : image.start + image.length]) == {pad} for image in row.images)


@pytest.mark.parametrize("settings", [RolloutSettings(), LoopSettings()])
def test_a_trainer_says_once_that_it_shows_no_images(
    family: tuple[str, Path], caplog: pytest.LogCaptureFixture, settings: RolloutSettings
):
    """TRL, Tinker, verl and slime open their gateways with these settings."""
    with settings.open_gateway(SeeingEngine([[5, 6]]), str(family[1])):
        said = [record.getMessage() for record in caplog.records if "images" in record.getMessage()]
    assert said == [f"{SAYS}the trainer trains on text (images=False)"]


def test_an_engine_without_images_is_named(family: tuple[str, Path], caplog: pytest.LogCaptureFixture):
    with Gateway(ScriptedEngine([]), tokenizer=str(family[1])):
        assert f"{SAYS}only vLLM takes images beside token ids" in caplog.text
