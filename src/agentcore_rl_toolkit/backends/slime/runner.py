"""`SlimeRunner`: a run with slime from Python, by the names that slime's users know."""

from __future__ import annotations

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

    Takes every setting of `SlimeSettings`, by our name, slime's, or that of the first toolkit's runner.
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
        ours = SlimeSettings.aliases()
        changed = {ours.get(name, name) for name in changes}
        told = {name: value for name, value in self._told.items() if ours.get(name, name) not in changed}
        return SlimeSettings.from_mapping(told | changes)

    def plan(self, **changes: Any) -> Plan:
        """What `train` would start. Checks what can be checked without a GPU; starts and writes nothing."""
        return BACKEND.plan(self.settings(**changes))

    def train(self, **changes: Any) -> dict[str, Any]:
        """Train; gives the run's summary. A run that failed raises `AgentCoreRLError`."""
        return BACKEND.train(self.settings(**changes))
