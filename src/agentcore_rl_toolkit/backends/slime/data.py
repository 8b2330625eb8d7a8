"""Payloads as slime's data rows, `{"prompt": …, "metadata": payload}`, and back: the agent gets the metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_READ_BY_SLIME = ("raw_reward", "round_number")
"""Keys of a sample's metadata that slime would take for its own figures."""


def slime_row(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload as slime reads it.

    The prompt is only shown, and a list of messages because slime insists on one for models that also see.

    >>> slime_row({"prompt": "2+2?", "answer": "4"})["metadata"]
    {'prompt': '2+2?', 'answer': '4'}
    """
    prompt = payload.get("prompt")
    text = prompt if isinstance(prompt, str) else json.dumps(payload, default=repr)[:1000]
    return {"prompt": [{"role": "user", "content": text}], "metadata": dict(payload)}


def write_rows(path: Path, payloads: Iterable[Mapping[str, Any]]) -> None:
    """A data set for slime."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(slime_row(payload)) + "\n" for payload in payloads))


def payload_of(sample: Any) -> dict[str, Any]:
    """What the agent is told: a sample's metadata, or its prompt where there is none."""
    known = dict(sample.metadata or {})
    known.pop("agentcore", None)  # a sample that comes round again
    return known or {"prompt": sample.prompt}


def shown(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata of a sample that is handed to slime."""
    return {name: value for name, value in (metadata or {}).items() if name not in _READ_BY_SLIME}
