"""Images in prompts: the tokens are those of Transformers' processor, and the rows train what the model really saw."""

from __future__ import annotations

import base64
import io
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_utils import load_image

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.images import session_images
from agentcore_rl_toolkit.gateway.images.image_file import DECODED_AT_ONCE, SessionImage, read_image
from agentcore_rl_toolkit.gateway.record.trajectory import Row, Trajectories
from agentcore_rl_toolkit.rollout.rollout import Action, Rollout
from agentcore_rl_toolkit.rollout.run_folder.rollout_files import read_fields, rollout_fields
from agentcore_rl_toolkit.types import Status
from support.gateway import Control, call_text
from support.memory import measured
from support.vlm import MODEL, VlmEngine, data_url, make_model, picture, processor

RED, BLUE, PHOTO = picture("red"), picture("blue"), picture("green", (200, 100), "JPEG")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = call_text("look")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("vlm"))


@contextmanager
def running(folder: Path, *script: str, **settings: Any) -> Iterator[tuple[Gateway, VlmEngine]]:
    engine = VlmEngine(folder, script)
    with Gateway(engine, tokenizer=str(folder), **settings) as gateway:
        yield gateway, engine


def url_part(data: bytes, kind: str = "png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data, kind)}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def ask(session: dict[str, Any], messages: list[Any], **more: Any) -> dict[str, Any]:
    """One call; the assistant's message."""
    response = post(session, messages, **more)
    response.raise_for_status()
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return {name: value for name, value in message.items() if value is not None}


def post(session: dict[str, Any], messages: list[Any], **more: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, "max_tokens": 12} | more
    return httpx.post(f"{session['base_url']}/chat/completions", json=body, timeout=60)


def rendered(messages: list[Any], tools: Any = None) -> list[int]:
    """The tokens of Transformers' processor."""
    made = processor().apply_chat_template(
        messages, tools=tools, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="np"
    )
    ids: list[int] = made["input_ids"][0].tolist()
    return ids


def shown(data: bytes) -> dict[str, Any]:
    return {"type": "image", "image": Image.open(io.BytesIO(data))}


def recompute(engine: VlmEngine, known: Trajectories, row: Row, files: dict[str, bytes] | None = None) -> Any:
    """The logprobs of the row's trained tokens, from its ids and the files of its images alone."""
    read = processor().image_processor
    files = files or dict(known.images)
    inputs = [read(images=[Image.open(io.BytesIO(files[image.sha256]))], return_tensors="np") for image in row.images]
    ids = torch.tensor(row.token_ids.tolist())
    logprobs = engine.logits(row.token_ids.tolist(), inputs).log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    return logprobs.numpy()[row.loss_mask[1:].astype(bool)]


# Exact tokens


def wires(data: bytes) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """A user's text, image and text on each wire: the session's URL, the path, the body."""
    encoded, limit = base64.b64encode(data).decode(), {"max_tokens": 4}
    anthropic = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    bedrock = {"image": {"format": "png", "source": {"bytes": encoded}}}
    google = {"inlineData": {"mimeType": "image/png", "data": encoded}}
    input_image = {"type": "input_image", "image_url": data_url(data)}
    texts = {"type": "text", "text": "what is "}, {"type": "text", "text": "?"}
    typed = [{"type": "input_text", "text": "what is "}, input_image, {"type": "input_text", "text": "?"}]
    plain = [{"text": "what is "}, {"text": "?"}]
    return {
        "chat": ("base_url", "chat/completions", {"messages": [user("what is ", url_part(data), "?")], **limit}),
        "responses": ("base_url", "responses", {"input": [{"role": "user", "content": typed}], "max_output_tokens": 4}),
        "messages": (
            "anthropic_base_url",
            "v1/messages",
            {"messages": [{"role": "user", "content": [texts[0], anthropic, texts[1]]}], **limit},
        ),
        "converse": (
            "bedrock_endpoint_url",
            f"model/{MODEL}/converse",
            {
                "messages": [{"role": "user", "content": [plain[0], bedrock, plain[1]]}],
                "inferenceConfig": {"maxTokens": 4},
            },
        ),
        "google": (
            "google_base_url",
            f"v1beta/models/{MODEL}:generateContent",
            {
                "contents": [{"role": "user", "parts": [plain[0], google, plain[1]]}],
                "generationConfig": {"maxOutputTokens": 4},
            },
        ),
    }


def test_the_prompt_is_the_processors_on_every_wire(folder: Path):
    wanted = rendered([user("what is ", shown(RED), "?")])
    with running(folder) as (gateway, engine):
        for base, path, body in wires(RED).values():
            session = gateway.open_session()
            httpx.post(f"{session[base]}/{path}", json={"model": MODEL} | body, timeout=60).raise_for_status()
            assert engine.requests[-1].prompt.tolist() == wanted
            assert gateway.trajectories(session["session_id"]).fidelity.omitted == {}
    assert wanted.count(engine.model.config.image_token_id) == 6


def test_a_session_with_images_of_users_and_tools_is_one_row_with_the_samplers_logprobs(folder: Path):
    with running(folder, CALL, "two reds", CALL, "and a green") as (gateway, engine):
        session = gateway.open_session()
        messages: list[Any] = [{"role": "system", "content": "be brief"}, user(url_part(RED), "and ", url_part(BLUE))]
        for data, kind in ((RED, "png"), (PHOTO, "jpeg")):
            messages.append(ask(session, messages, tools=[TOOL], max_tokens=60))
            (made,) = messages[-1]["tool_calls"]
            content = [{"type": "text", "text": "seen: "}, url_part(data, kind)]
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": content})
            messages.append(ask(session, messages, tools=[TOOL], max_tokens=60))
            messages.append(user("go on"))
        known = gateway.trajectories(session["session_id"])
        (row,) = known.rows
        fidelity = known.fidelity
        assert (fidelity.rows, fidelity.bridges, fidelity.trained) == (1, 3, fidelity.sampled)
        assert [image.length for image in row.images] == [6, 6, 6, 18]
        assert len(known.images) == 3  # one of them is there twice
        said = [dict(message) for message in messages[:-1]]
        for message in said:
            if isinstance(message.get("content"), list):
                message["content"] = [_seen(part) for part in message["content"]]
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = {}
        whole = rendered(said[:-1], [TOOL])
        assert row.token_ids.tolist()[: len(whole)] == whole
        assert np.abs(recompute(engine, known, row) - row.logprobs[row.loss_mask.astype(bool)]).max() < 1e-4
        swapped = dict(known.images) | {row.images[0].sha256: BLUE}
        other = recompute(engine, known, row, swapped)
        assert np.abs(other - row.logprobs[row.loss_mask.astype(bool)]).max() > 0.01


def _seen(part: Any) -> Any:
    if part["type"] != "image_url":
        return part
    return shown(base64.b64decode(part["image_url"]["url"].partition(",")[2]))


def test_sampled_tokens_between_images_are_never_rendered_again(folder: Path):
    with running(folder) as (gateway, engine):  # whatever random weights say
        session = gateway.open_session()
        messages = [user("one ", url_part(RED))]
        for data in (BLUE, RED, BLUE):
            messages += [ask(session, messages), user(url_part(data))]
        ask(session, messages)
        known = gateway.trajectories(session["session_id"])
        (row,) = known.rows
        assert known.fidelity.trained == known.fidelity.sampled
        assert np.abs(recompute(engine, known, row) - row.logprobs[row.loss_mask.astype(bool)]).max() < 1e-4


def test_another_image_of_the_same_size_begins_a_row_at_the_image(folder: Path):
    with running(folder, "red", "blue") as (gateway, _):
        session = gateway.open_session()
        long = "tell me what this picture shows, in one word please: "
        for data in (RED, BLUE):
            ask(session, [user(long, url_part(data))])
        first, second = gateway.trajectories(session["session_id"]).rows
        place = first.images[0].start
        assert first.token_ids[: first.prompt_length] == second.token_ids[: second.prompt_length]
        assert first.images[0].sha256 != second.images[0].sha256
        (_, turn) = Control(gateway).turns(session)
        assert (turn["kept_tokens"], turn["unbridged"]) == (place, "changed_history")


def test_choices_of_one_call_share_the_image(folder: Path):
    with running(folder, "red", "green") as (gateway, engine):
        session = gateway.open_session()
        answer = post(session, [user(url_part(RED))], n=2).json()
        assert {choice["message"]["content"] for choice in answer["choices"]} == {"red", "green"}
        rows = gateway.trajectories(session["session_id"]).rows
        assert [len(row.images) for row in rows] == [1, 1]
        assert all(len(request.images) == 1 for request in engine.requests)


def test_a_response_is_continued_by_its_id(folder: Path):
    with running(folder, "red", "still red") as (gateway, engine):
        session = gateway.open_session()
        content = [{"type": "input_image", "image_url": data_url(RED)}]
        at = f"{session['base_url']}/responses"
        first = httpx.post(at, json={"input": [{"role": "user", "content": content}]}, timeout=60).json()
        httpx.post(at, json={"input": "sure?", "previous_response_id": first["id"]}, timeout=60).raise_for_status()
        assert len(engine.requests[-1].images) == 1
        assert gateway.trajectories(session["session_id"]).fidelity.rows == 1


def test_text_that_spells_an_image_token_is_text(folder: Path):
    with running(folder, "red") as (gateway, engine):
        session = gateway.open_session()
        ask(session, [user("say <|image_pad|> ", url_part(RED)), user("<|image_pad|>")])
        pad = engine.model.config.image_token_id
        assert engine.requests[-1].prompt.tolist().count(pad) == 6


def test_a_photo_is_turned_as_transformers_turns_it(folder: Path):
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # orientation: a quarter turn
    Image.open(io.BytesIO(PHOTO)).save(buffer, "JPEG", exif=exif)
    with running(folder, "green") as (gateway, engine):
        ask(gateway.open_session(), [user(url_part(buffer.getvalue(), "jpeg"))])
        sent = Image.open(io.BytesIO(engine.requests[-1].images[0].png()))
    loaded = load_image(Image.open(buffer))
    assert sent.size == loaded.size == (100, 200)
    assert sent.tobytes() == loaded.tobytes()


# The record


def test_a_conversation_with_images_goes_on_after_a_restart(folder: Path, tmp_path: Path):
    messages = [user("look ", url_part(RED)), user(url_part(RED))]
    with running(folder, "red", log=tmp_path) as (gateway, engine):
        session = gateway.open_session()
        reply = ask(session, messages)
        before, key = gateway.trajectories(session["session_id"]), gateway.url
        sent = engine.requests[-1].images
    data = b"".join(path.read_bytes() for path in tmp_path.glob("*.turns"))
    assert data.count(RED) == 1
    with running(folder, "still", log=tmp_path) as (gateway, engine):
        session["base_url"] = session["base_url"].replace(key, gateway.url)
        (row,), (old,) = gateway.trajectories(session["session_id"]).rows, before.rows
        assert (row.images, row.token_ids) == (old.images, old.token_ids)
        ask(session, [*messages, reply, user("sure?")])
        after = gateway.trajectories(session["session_id"])
        assert (after.fidelity.rows, after.fidelity.bridges) == (1, 1)
        assert after.images == before.images
        assert [image.offset for image in engine.requests[-1].images] == [image.offset for image in sent]
        assert all(one.png() == other.png() for one, other in zip(engine.requests[-1].images, sent, strict=True))


def test_rows_say_which_images_stand_where(folder: Path):
    with running(folder, "red") as (gateway, _):
        session = gateway.open_session()
        ask(session, [user("look ", url_part(RED))])
        known = gateway.trajectories(session["session_id"])
        read = Control(gateway)("GET", f"/sessions/{session['session_id']}/trajectories").json()
        (image,) = known.rows[0].images
        assert read["rows"][0]["images"] == [list(image)]
        assert base64.b64decode(read["images"][image.sha256]) == RED
        rollout = Rollout(
            input_id="i", session_id="s", sample=0, status=Status.COMPLETED, action=Action.TRAIN, why="", payload={},
            result=None, error=None, rewards=[], rows=known.rows, fidelity=known.fidelity, seconds={},
        )  # fmt: skip
        assert read_fields(rollout_fields(rollout)).rows[0].images == (image,)


# Models that see no images, and images that are not sent


def test_without_eyes_the_model_reads_placeholders(folder: Path, tmp_path: Path):
    says = processor().tokenizer.encode("ok<|im_end|>", add_special_tokens=False)
    engines: list[tuple[Any, dict[str, Any]]] = [
        (ScriptedEngine([says]), {}),
        (VlmEngine(folder, ["ok"]), {"images": False}),
    ]
    for engine, settings in engines:
        with Gateway(engine, tokenizer=str(folder), log=tmp_path / type(engine).__name__, **settings) as gateway:
            session = gateway.open_session()
            ask(session, [user("look ", url_part(RED))], model=gateway.model)
            text = processor().tokenizer.decode(engine.requests[-1].prompt.tolist())
            assert "look [image omitted: this model reads text only]" in text
            known = gateway.trajectories(session["session_id"])
            assert (known.fidelity.omitted, known.rows[0].images, known.images) == ({"image": 1}, (), {})
        written = b"".join(path.read_bytes() for path in (tmp_path / type(engine).__name__).glob("*.turns"))
        assert base64.b64encode(RED)[:100] not in written


def test_the_gateway_fetches_no_url(folder: Path):
    with running(folder, "ok") as (gateway, engine):
        session = gateway.open_session()
        links = ("http://127.0.0.1:9/x.png", "file:///etc/passwd", "gs://b/x")
        system = user("be brief", url_part(RED)) | {"role": "system"}
        ask(
            session,
            [system, user(*({"type": "image_url", "image_url": {"url": link}} for link in links), url_part(RED))],
        )
        text = processor().tokenizer.decode(engine.requests[-1].prompt.tolist())
        assert text.count("[image omitted: only images sent as data are shown]") == 3
        assert len(engine.requests[-1].images) == 1
        assert gateway.trajectories(session["session_id"]).fidelity.omitted == {"image": 4}


# Hostile images


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"
INVALID = {
    "not base64": "data:image/png;base64,@@@",
    "not an image": data_url(b"hello"),
    "cut off": data_url(RED[:200]),
    "a bomb": data_url(bomb(60_000, 60_000)),
    "too many pixels": data_url(bomb(5_000, 5_000)),
    "a format that runs programs": data_url(EPS),
    "another format": data_url(picture("red", kind="BMP")),
    "text": "data:text/plain,hello",
    "empty": "data:image/png;base64,",
    "too many bytes": data_url(bytes(21 << 20)),
    "a shape that the processor refuses": data_url(picture("red", (300, 1))),
}


@pytest.mark.parametrize("name", INVALID)
def test_the_agent_goes_on_after_an_image_that_cannot_be_shown(
    folder: Path, hostile: tuple[Gateway, VlmEngine], name: str
):
    gateway, engine = hostile
    session = gateway.open_session()
    messages = [user("look ", {"type": "image_url", "image_url": {"url": INVALID[name]}}, url_part(RED))]
    messages += [ask(session, messages), user("and?")]
    ask(session, messages)
    text = processor().tokenizer.decode(engine.requests[-1].prompt.tolist())
    assert re.search(r"look \[image omitted: (only PNG, JPEG, WEBP, GIF of at most|the model's image processor)", text)
    assert len(engine.requests[-1].images) == 1
    fidelity = gateway.trajectories(session["session_id"]).fidelity
    assert (fidelity.omitted, fidelity.rows, fidelity.bridges) == ({"image": 1}, 1, 1)


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Iterator[tuple[Gateway, VlmEngine]]:
    with running(folder) as both:
        yield both


def test_a_session_holds_so_many_images(hostile: tuple[Gateway, VlmEngine], monkeypatch: pytest.MonkeyPatch):
    gateway, _ = hostile
    session = gateway.open_session()
    monkeypatch.setattr(session_images, "MOST_IMAGES", 1)
    assert post(session, [user(url_part(RED), url_part(RED))]).status_code == 200
    refused = post(session, [user(url_part(RED), url_part(BLUE))])
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_many_images")
    monkeypatch.setattr(session_images, "MOST_IMAGES", 10)
    monkeypatch.setattr(session_images, "MOST_BYTES", len(RED) + 1)
    assert post(session, [user(url_part(BLUE))]).status_code == 413


def test_a_call_decodes_one_image_at_a_time(folder: Path):
    large = io.BytesIO()
    Image.new("1", (4096, 4096)).save(large, "PNG")  # 2 KB, which are 48 MB when decoded
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(large.getvalue()).decode()}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "image", "source": source}] * 24}]}
    with running(folder) as (gateway, _), measured() as peak:
        url = f"{gateway.open_session()['base_url']}/messages/count_tokens"
        assert httpx.post(url, json=body, timeout=60).json()["input_tokens"] > 24
    assert peak.bytes < 700 << 20


def test_few_images_are_decoded_at_the_same_time():
    entered, leave = threading.Semaphore(0), threading.Event()

    def measure(image: SessionImage, pixels: Any) -> None:
        entered.release()
        assert leave.wait(60)

    with ThreadPoolExecutor(DECODED_AT_ONCE + 2) as threads:
        sources = [data_url(picture("red", (40 + n, 40))) for n in range(DECODED_AT_ONCE + 2)]
        read = [threads.submit(read_image, source, {}, measure) for source in sources]
        assert all(entered.acquire(timeout=60) for _ in range(DECODED_AT_ONCE))
        assert not entered.acquire(timeout=0.5)
        leave.set()
        assert all(isinstance(one.result(60), SessionImage) for one in read)


def test_a_call_shows_a_bounded_number_of_images(folder: Path):
    with running(folder, "ok") as (gateway, engine):
        refused = post(gateway.open_session(), [user(*[url_part(RED)] * 513)])
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_many_images")
        assert engine.requests == []
