"""`SlimeRunner`: a run with slime from Python, by the names that slime's users know."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..base import Plan, require
from .backend import BACKEND, SlimeSettings


class SlimeRunner:
    """Trains an agent with slime.

        runner = SlimeRunner(
            agent_runtime_arn=…, s3_bucket=…, exp_id=…, model_dir=…, data_path=…, model_type="qwen3-4B"
        )
        runner.train(num_rollout=200)

    Takes every setting of `SlimeSettings`, by our name or the seeds'.
    """

    def __init__(self, **settings: Any) -> None:
        SlimeSettings.from_mapping(settings)  # refuse what is wrong here, not when it is trained
        self._told = settings

    @classmethod
    def from_yaml(cls, path: str | Path) -> SlimeRunner:
        """A runner with the settings of a YAML file; paths in it are taken from where one stands."""
        yaml = require("yaml", BACKEND.extra, "SlimeRunner.from_yaml")
        try:
            told = yaml.safe_load(Path(path).read_text())
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is no YAML: {error}") from None
        if not isinstance(told, dict):
            raise ConfigError(f"{path} has no settings", hint="write: agent_runtime_arn: …")
        told.pop("backend", None)
        return cls(**told)

    def settings(self, **changes: Any) -> SlimeSettings:
        """The settings of a run, with changes."""
        ours = {name: value for name, value in self._told.items() if _ours(name) not in map(_ours, changes)}
        return SlimeSettings.from_mapping(ours | changes)

    def plan(self, **changes: Any) -> Plan:
        """What `train` would start. Checks what can be checked without a GPU; starts and writes nothing."""
        return BACKEND.plan(self.settings(**changes))

    def train(self, **changes: Any) -> dict[str, Any]:
        """Train; gives the run's summary. A run that failed raises `AgentCoreRLError`."""
        return BACKEND.train(self.settings(**changes))


def _ours(name: str) -> str:
    """Our name of a setting."""
    return {spec.metadata["seed"]: spec.name for spec in dataclasses.fields(SlimeSettings)}.get(name, name)
