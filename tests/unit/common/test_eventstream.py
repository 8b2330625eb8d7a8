"""Event stream frames, read back by botocore's own decoder and by a real boto3 client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest
from botocore.eventstream import EventStreamBuffer, EventStreamMessage
from botocore.exceptions import EventStreamError
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.common.eventstream import (
    CONTENT_TYPE,
    KEEP_ALIVE,
    MAX_PAYLOAD,
    encode_event,
    encode_exception,
)
from agentcore_rl_toolkit.errors import RuntimeFault


def decode(data: bytes) -> list[EventStreamMessage]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    messages = list(buffer)
    assert buffer._data == b"", "bytes are left after the last frame"
    return messages


@given(st.binary(max_size=2000), st.text(max_size=40))
def test_an_event_reads_back(payload: bytes, event_type: str) -> None:
    (message,) = decode(encode_event(event_type, payload))
    assert message.payload == payload
    assert message.headers == {
        ":message-type": "event",
        ":event-type": event_type,
        ":content-type": "application/json",
    }


@given(st.text(max_size=500))
def test_an_exception_reads_back(message_text: str) -> None:
    (message,) = decode(encode_exception("ThrottlingException", message_text))
    assert json.loads(message.payload) == {"message": message_text}
    assert message.headers == {
        ":message-type": "exception",
        ":exception-type": "throttlingException",
        ":content-type": "application/json",
    }


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 7))
def test_frames_follow_each_other_however_they_are_cut(payloads: list[bytes], size: int) -> None:
    data = b"".join(encode_event("chunk", payload) for payload in payloads)
    buffer, got = EventStreamBuffer(), []
    for start in range(0, len(data), size):
        buffer.add_data(data[start : start + size])
        got += [message.payload for message in buffer]
    assert got == payloads


def test_the_largest_payload_fits_and_a_larger_one_is_refused() -> None:
    (message,) = decode(encode_event("chunk", bytes(MAX_PAYLOAD)))
    assert len(message.payload) == MAX_PAYLOAD
    with pytest.raises(RuntimeFault, match=r"(?s)16777217 bytes.*hint: cut"):
        encode_event("chunk", bytes(MAX_PAYLOAD + 1))


def test_boto3_reads_a_commands_events_and_its_error() -> None:
    chunks: list[dict[str, Any]] = [
        {"contentStart": {}},
        {"contentDelta": {"stdout": "héllo\n"}},
        {"contentDelta": {"stderr": "oops"}},
        {"contentStop": {"exitCode": 3, "status": "COMPLETED"}},
    ]
    frames = b"".join(encode_event("chunk", json.dumps(chunk).encode()) for chunk in chunks)
    with read_by_boto3(frames + encode_exception("ResourceNotFoundException", "the session ended")) as events:
        assert [next(events)["chunk"] for _ in chunks] == chunks
        with pytest.raises(EventStreamError) as caught:
            next(events)
    assert caught.value.response["Error"] == {"Code": "resourceNotFoundException", "Message": "the session ended"}


def test_boto3_passes_over_what_is_sent_in_silence() -> None:
    start, stop = {"contentStart": {}}, {"contentStop": {"exitCode": 0, "status": "COMPLETED"}}
    frames = [encode_event("chunk", json.dumps(chunk).encode()) for chunk in (start, stop)]
    with read_by_boto3(KEEP_ALIVE + frames[0] + KEEP_ALIVE * 3 + frames[1]) as events:
        assert list(events) == [{"chunk": start}, {"chunk": stop}]


@contextmanager
def read_by_boto3(body: bytes) -> Iterator[Iterator[dict[str, Any]]]:
    """What `invoke_agent_runtime_command` makes of `body`, from a server that answers with it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = boto3.client(
            "bedrock-agentcore",
            endpoint_url=f"http://127.0.0.1:{server.server_port}",
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
        )
        stream = client.invoke_agent_runtime_command(
            agentRuntimeArn="arn:aws:bedrock-agentcore:us-east-1:123456789012:runtime/agent",
            runtimeSessionId="session-0123456789-0123456789-0123456789",
            body={"command": "true"},
        )["stream"]
        yield iter(stream)
        stream.close()
        client.close()
        server.shutdown()
