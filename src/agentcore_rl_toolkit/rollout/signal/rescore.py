"""Score stored rollouts with another reward function, without running the agent or the model again."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...agent.reward import normalize_rewards
from ...errors import ConfigError
from ...types import Status
from ..judge import NO_REWARD, Judge
from ..rollout import Rollout

Score = Callable[..., Any]


def load_reward(spec: str) -> Score:
    """Load the reward function `file.py:name` or `module:name`; a class is instantiated.

    >>> load_reward("nowhere")
    Traceback (most recent call last):
    agentcore_rl_toolkit.errors.ConfigError: not a reward function: 'nowhere'
    hint: write file.py:name or module:name
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(f"not a reward function: {spec!r}", hint="write file.py:name or module:name")
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        found = getattr(module, name)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(f"{spec} can't be loaded: {error}") from error
    try:
        score: Any = found() if inspect.isclass(found) else found
    except TypeError as error:
        raise ConfigError(f"{spec} can't be made without arguments: {error}", hint="name an instance") from error
    if not callable(score):
        raise ConfigError(f"{spec} can't be called", hint="name a function or a RewardFunction class")
    return score  # type: ignore[no-any-return]


def absolute(spec: str) -> str:
    """The same function for a process with another working directory."""
    place, _, name = spec.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else spec


def _file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"reward_of_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"{path} is not a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def rescore(rollout: Rollout, score: Score) -> Rollout:
    """The rollout with the rewards that `score` gives it; one without a result stays as it is.

    `score` is called with the keyword arguments it names: `payload` (the data row), `result` (what the agent returned),
    `rollout`, `ground_truth` (the row's `answer`), `response_text` (the result's `response`, or the last reply), or any
    key of the result or the row. One with `**kwargs` gets all of these. A rollout that was left out for its reward is
    judged again.
    """
    if rollout.result is None or rollout.status not in (Status.COMPLETED, Status.REWARD_ERROR):
        return rollout
    rewards = normalize_rewards(score(**wanted(score, known_of(rollout))))
    scored = replace(rollout, rewards=rewards, status=Status.COMPLETED, error=None)
    by_reward = rewards is None or rollout.why in (Status.REWARD_ERROR.value, NO_REWARD)
    return Judge().rollout(scored) if by_reward else scored


def known_of(rollout: Rollout) -> dict[str, Any]:
    """What a reward function may ask for, by name."""
    result = (rollout.result or {}).get("returned") if rollout.status is Status.REWARD_ERROR else rollout.result
    result = result if isinstance(result, dict) else {}
    said = rollout.transcript.turns[-1].reply.get("content") if rollout.transcript.turns else None
    return {
        "ground_truth": rollout.payload.get("answer"),
        "response_text": result.get("response") or (said if isinstance(said, str) else None),
        **rollout.payload,
        **result,
        "payload": rollout.payload,
        "result": result,
        "rollout": rollout,
    }


def wanted(score: Score, known: dict[str, Any]) -> dict[str, Any]:
    """Those of the known values that a reward function takes."""
    parameters = inspect.signature(score).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return known
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if missing := [name for name in needed if name not in known]:
        hint = f"available: {', '.join(sorted(known))}"
        raise ConfigError(f"the reward function needs {', '.join(missing)}", hint=hint)
    names = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {name: known[name] for name in names if name in known}
