from __future__ import annotations

import contextvars
import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from bedrock_agentcore.runtime import BedrockAgentCoreContext

from agentcore_rl_toolkit.agent.logs import JsonFormatter, JsonLine, current_redactor
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
from support.process import clean_env


def line(msg: object, *args: object, error: Exception | None = None) -> dict[str, Any]:
    """What a record is written as, under a request that carries a secret."""

    def write() -> str:
        current_redactor.set(Redactor.of({"api_key": "sk-12345678"}))
        BedrockAgentCoreContext.set_request_context("request-1", "session-1")
        exc_info = (type(error), error, error.__traceback__) if error is not None else None
        return JsonFormatter().format(logging.LogRecord("a.b", logging.WARNING, "f.py", 1, msg, args, exc_info))

    text = contextvars.Context().run(write)
    assert "\n" not in text
    assert text.isascii() is str(msg).isascii()  # people read these too
    entry: dict[str, Any] = json.loads(text)
    assert entry.pop("timestamp").endswith("Z")
    return entry


BASE = {"level": "WARNING", "logger": "a.b", "sessionId": "session-1", "requestId": "request-1"}


def test_a_line_says_what_where_and_for_whom() -> None:
    assert line("Grüße an %s", "sk-12345678") == BASE | {"message": "Grüße an ***"}


def test_an_exception_has_no_secrets() -> None:
    try:
        raise ValueError("401 for sk-12345678")
    except ValueError as error:
        entry = line("it failed", error=error)
    trace = entry.pop("stackTrace")
    assert trace.endswith("ValueError: 401 for ***\n")
    assert "sk-12345678" not in trace
    expected = {"message": "it failed", "errorType": "ValueError", "errorMessage": "401 for ***"}
    assert entry == BASE | expected


def test_an_exception_that_cannot_say_what_it_is_leaves_a_line() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    entry = line("it failed", error=Mute())
    assert (entry["errorType"], entry["message"]) == ("Mute", "it failed")
    assert len(line("größer", error=ValueError("x" * 1_000_000))["stackTrace"]) <= 100_000


def test_a_line_of_fields_is_one_object_under_any_formatter() -> None:
    fields = {"event": "result_not_stored", "document": {"rewards": 1.0}, "odd": {1}}
    shown = {"event": "result_not_stored", "document": {"rewards": 1.0}, "odd": "{1}"}
    assert line(JsonLine(fields)) == BASE | shown
    record = logging.LogRecord("a.b", logging.ERROR, "f.py", 1, JsonLine(fields), (), None)
    assert json.loads(logging.Formatter().format(record)) == shown


def configured(before: str) -> tuple[str, str]:
    """stdout and stderr of a program that sets up logging by `before`, and then with ours."""
    code = f"""if True:
        import logging, sys
        from agentcore_rl_toolkit.agent.logs import configure_logging
        {before}
        configure_logging(logging.INFO)
        configure_logging(logging.INFO)
        logging.getLogger("mine").info("hello")
        logging.getLogger("mine").debug("too much")
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    return out.stdout, out.stderr


def test_lines_go_to_stderr_once() -> None:
    out, err = configured("pass")
    assert out == ""
    assert json.loads(err)["message"] == "hello"


@pytest.mark.parametrize("first", ["app", "logs"])
def test_lines_of_an_agents_own_app_come_once_and_redacted(first: str) -> None:
    """An agent that `init` completed has the SDK's app, which it constructs before or after ours logs."""
    construct = "app = BedrockAgentCoreApp()"
    before, after = (construct, "pass") if first == "app" else ("pass", construct)
    code = f"""if True:
        from bedrock_agentcore.runtime import BedrockAgentCoreApp
        from agentcore_rl_toolkit.agent.logs import configure_logging, current_redactor
        from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor
        current_redactor.set(Redactor.of({{"api_key": "sk-12345678"}}))
        {before}
        configure_logging()
        {after}
        app.logger.info("called with sk-12345678")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert [json.loads(text)["message"] for text in done.stderr.splitlines()] == ["called with ***"]


def test_a_program_that_logs_its_own_way_is_left_alone() -> None:
    assert configured("logging.basicConfig(level=logging.INFO, format='mine: %(message)s')") == ("", "mine: hello\n")
    assert configured("logging.getLogger().addHandler(logging.NullHandler())") == ("", "")
