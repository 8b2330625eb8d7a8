"""Hydra overrides of stock verl: for our settings, and for the spelling `…rollout.name=agentcore`. Pure.

verl has one free table in its rollout configuration, `rollout.custom`: ours is `rollout.custom.agentcore`. Everything
else is verl's own keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROLLOUT = "actor_rollout_ref.rollout"
CUSTOM = f"{ROLLOUT}.custom.agentcore"
SPELLED = f"{ROLLOUT}.agentcore"
NAME = f"{ROLLOUT}.name"
ENGINE = "vllm"
"""Which of verl's servers samples, if nobody says."""

MANAGER = f"{ROLLOUT}.agent.agent_loop_manager_class"

NEEDED = {
    MANAGER: "agentcore_rl_toolkit.backends.verl.manager.AgentCoreManager",
    f"{ROLLOUT}.agent.num_workers": 1,
    "data.custom_cls.path": "pkg://agentcore_rl_toolkit.backends.verl.data",
    "data.custom_cls.name": "JsonlRows",
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.actor.shuffle": True,
    "trainer.v1.sampler.sync_refill_failed_groups": True,
    f"{ROLLOUT}.calculate_log_probs": True,
    "algorithm.rollout_correction.rollout_is": "token",
}
"""What verl has to be told for agents' rollouts, unless somebody has told it otherwise.

`shuffle`: rollouts of several rows make a batch of more rows than were asked for. verl fills it up with masked ones to
a further update, which without it would be of the last few rows alone.

`rollout_is`: the sampler's probabilities differ from the trainer's, by rounding, and in asynchronous modes by updates.
verl weighs each token by their ratio, up to its `rollout_is_threshold`.
"""


def translate(overrides: Sequence[str]) -> list[str]:
    """Overrides that stock verl takes, for those with `rollout.name=agentcore`; others are given back as they are.

    >>> translate(["actor_rollout_ref.rollout.name=agentcore", "actor_rollout_ref.rollout.agentcore.s3_bucket=b"])[-1]
    '++actor_rollout_ref.rollout.custom.agentcore.s3_bucket=b'
    """
    pairs = [_pair(text) for text in overrides]
    if (NAME, "agentcore") not in pairs:
        return list(overrides)
    engine = next((value for key, value in pairs if key == f"{SPELLED}.engine"), ENGINE)
    known = {key for key, _ in pairs}
    needed = spelled({key: value for key, value in NEEDED.items() if not _told(key, known)})
    told: list[str] = []
    for text, (key, value) in zip(overrides, pairs, strict=True):
        if (key, value) == (NAME, "agentcore"):
            told += [f"{NAME}={engine}", *needed]  # beside it: an option of Hydra's may come between overrides
        elif key == SPELLED or key.startswith(f"{SPELLED}."):
            if key != f"{SPELLED}.engine":
                told.append(f"++{CUSTOM}{key.removeprefix(SPELLED)}={value}")
        else:
            told.append(text)
    return told


def spelled(values: Mapping[str, Any]) -> list[str]:
    """Overrides for values by key. Ours are added to verl's files; of others Hydra refuses what verl doesn't have.

    >>> spelled({"trainer.logger": ["console"], "+x.y": None, "data.train_files": "it's.jsonl"})
    ['trainer.logger=["console"]', '+x.y=null', "data.train_files='it\\\\'s.jsonl'"]
    """
    added = (MANAGER, f"{CUSTOM}.")
    return [f"{'++' if key.startswith(added) else ''}{key}={_value(value)}" for key, value in values.items()]


def as_written(options: Mapping[str, Any]) -> list[str]:
    """Overrides for options of the user's: text is Hydra's to read, as on verl's own command line.

    >>> as_written({"actor_rollout_ref.actor.optim.lr": "1e-6", "trainer.logger": ["console"]})
    ['actor_rollout_ref.actor.optim.lr=1e-6', 'trainer.logger=["console"]']
    """
    return [f"{key}={value if isinstance(value, str) else _value(value)}" for key, value in options.items()]


def key_of(override: str) -> str:
    """The key that an override, or the name of one, is about.

    >>> key_of("++trainer.logger=x")
    'trainer.logger'
    """
    return _pair(override)[0]


def _told(key: str, known: set[str]) -> bool:
    """A data class of the user's own comes with a name of its own."""
    return key in known or (key == "data.custom_cls.name" and "data.custom_cls.path" in known)


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+~"), value


def _value(value: Any) -> str:
    """A value as Hydra's grammar has it: strings are quoted, for they may hold anything."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\") if value.endswith("\\") else value
        return "'" + escaped.replace("'", "\\'") + "'" if _needs_quotes(value) else value
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_quoted(one) if isinstance(one, str) else _value(one) for one in value) + "]"
    return repr(value)


def _needs_quotes(text: str) -> bool:
    plain = all(character.isalnum() or character in "/-_.:@" for character in text)
    return not text or not plain or text.lower() in ("null", "true", "false", "nan", "inf") or _number(text)


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
