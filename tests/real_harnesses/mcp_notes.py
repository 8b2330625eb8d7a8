"""An MCP server with one tool, whose result has a picture. It speaks JSON-RPC on its standard streams."""

from __future__ import annotations

import json
import sys
from typing import Any

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def answer(method: str, given: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "notes", "version": "1"}
        return {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": "add_note", "description": "Adds a note.", "inputSchema": _SCHEMA}]}
    if method == "tools/call":
        picture = {"type": "image", "data": _PIXEL, "mimeType": "image/png"}
        return {"content": [{"type": "text", "text": "noted"}, picture]}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked["method"], asked.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)  # noqa: T201
