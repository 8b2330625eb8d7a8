"""Packages that decide whether verl can train: flash-attn, and TRL. It looks for them and imports nothing."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any

ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
_VALUE_HEAD = "AutoModelForCausalLMWithValueHead"


def has(name: str) -> bool:
    """Whether a package can be imported here."""
    return importlib.util.find_spec(name) is not None


def attention() -> dict[str, Any]:
    """What verl is told where it is installed without flash-attn, which it asks Transformers for by default.

    verl's packing (`use_remove_padding`) stays on: from the positions, Transformers masks sequences from each other.
    """
    return {f"+{ATTENTION}": "sdpa"} if has("verl") and not has("flash_attn") else {}


def trl_clash() -> str | None:
    """Why verl can't build its model beside the TRL that is installed here; None if it can.

    Where TRL can be found, verl's `apply_monkey_patch` imports TRL's value head, from `trl.experimental.ppo` or from
    `trl`. Newer TRL has it in neither.
    """
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    if (root / "experimental" / "ppo").is_dir() or _VALUE_HEAD in Path(spec.origin).read_text():
        return None
    return (
        f"warning: TRL {metadata.version('trl')} is installed here and has no {_VALUE_HEAD}, which verl imports from "
        "it to build the model, so the run will end with an ImportError: install [verl] and [trl] in separate "
        "environments"
    )
