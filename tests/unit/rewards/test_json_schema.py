"""`JsonSchemaValidity`: what counts as JSON, what as valid, and that a bad schema is never a bad response."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rewards import JsonSchemaValidity

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"items": {"type": "string"}}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("response", "score", "part"),
    [
        ('{"name": "Ada", "age": 36}', 1.0, 1.0),
        (' \n{"name": "Ada", "age": 36, "tags": ["x"]}\n', 1.0, 1.0),
        ('Sure:\n```json\n{"name": "Ada", "age": 36}\n```\nDone.', 1.0, 1.0),
        ('```\n{"name": "Ada", "age": 36}\n```', 1.0, 1.0),
        ('```json\n{}\n```\nBetter:\n```json\n{"name": "Ada", "age": 36}\n```', 1.0, 1.0),
        ('```json\n{"name": "Ada", "age": 36}\n```\nNo:\n```json\n{}\n```', 0.0, 0.0),
        ('```python\n{"name": "Ada", "age": 36}\n```', 0.0, 0.0),
        ('{"name": "Ada", "age": "36"}', 0.0, 1 / 3),
        ('{"name": "Ada"}', 0.0, 1 / 3),
        ('{"name": "Ada", "age": 36, "tags": [1]}', 0.0, 2 / 4),
        ('{"name": "Ada", "age": 36, "x": 1}', 0.0, 2 / 3),
        ("{}", 0.0, 0.0),
        ("[[]]", 0.0, 0.0),
        ("5", 0.0, 0.0),
        ('"name age"', 0.0, 0.0),
        ('{"name": "Ada", "age": 36', 0.0, 0.0),
        ("", 0.0, 0.0),
        ("[" * 100_000, 0.0, 0.0),
        ("9" * 10_000, 0.0, 0.0),
    ],
    ids=lambda value: str(value)[:40],
)
def test_score(response: str, score: float, part: float) -> None:
    assert JsonSchemaValidity(SCHEMA)(response_text=response, ground_truth="ignored") == score
    assert JsonSchemaValidity(SCHEMA, partial=True)(response_text=response) == pytest.approx(part)


@pytest.mark.parametrize("response", ["NaN", "Infinity", "```json\n-Infinity\n```"])
def test_what_only_python_calls_json_is_not(response: str) -> None:
    assert JsonSchemaValidity(True)(response_text=response) == 0.0
    assert JsonSchemaValidity(True)(response_text="1") == 1.0


def test_a_value_too_deep_to_check_is_not_valid() -> None:
    nested = {"$ref": "#", "type": "array", "items": {"$ref": "#"}}
    depth = sys.getrecursionlimit() // 2
    assert JsonSchemaValidity(nested)(response_text="[" * depth + "]" * depth) == 0.0


def test_partial_needs_no_declared_properties() -> None:
    assert JsonSchemaValidity(False, partial=True)(response_text="{}") == 0.0
    assert JsonSchemaValidity({"minProperties": 2}, partial=True)(response_text='{"a": 1}') == 0.0


@pytest.mark.parametrize("schema", [{"type": "strin"}, {"required": "name"}, "object", 7, None], ids=repr)
def test_an_invalid_schema_is_refused_when_made(schema: object) -> None:
    with pytest.raises(ConfigError, match="schema is"):
        JsonSchemaValidity(schema)  # type: ignore[arg-type]


def test_the_draft_a_schema_names_is_the_one_used() -> None:
    tuple_of_two = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert JsonSchemaValidity(tuple_of_two)(response_text='["x"]') == 0.0
    assert JsonSchemaValidity(tuple_of_two)(response_text='[1, "x"]') == 1.0


def test_a_reference_is_never_fetched() -> None:
    asked: list[str] = []

    class Schemas(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    with http.server.HTTPServer(("127.0.0.1", 0), Schemas) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            reward_fn = JsonSchemaValidity({"$ref": f"http://127.0.0.1:{server.server_port}/schema"})
            with pytest.raises(ConfigError, match=r"can't be resolved\nhint: put it under \$defs"):
                reward_fn(response_text="1")
        finally:
            server.shutdown()
            thread.join()
    assert asked == []


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "jsonschema.py").write_text("raise ImportError('No module named jsonschema')")
    script = "from agentcore_rl_toolkit.rewards import JsonSchemaValidity; JsonSchemaValidity({})"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert "ConfigError: JsonSchemaValidity needs a package that is not installed" in done.stderr
    assert "hint: pip install 'agentcore-rl-toolkit[rewards]'" in done.stderr
