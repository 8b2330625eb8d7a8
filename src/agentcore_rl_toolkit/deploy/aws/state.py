"""The record of what a deployment created, in the agent's folder. `destroy` deletes what it lists and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError

STATE_FILE = ".agentcore-rl.json"
_VERSION = 1


@dataclass
class State:
    """One agent's deployment: `made` lists its resources, oldest first; `settings` are those of the last deploy."""

    path: Path
    account: str | None = None
    region: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    made: list[dict[str, str]] = field(default_factory=list)
    arn: str | None = None
    image: str | None = None

    @classmethod
    def load(cls, folder: Path) -> State:
        """The state of an agent's folder, empty if the agent was never deployed from it."""
        path = folder / STATE_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError) as error:
            hint = "restore it: it lists what deploy created"
            raise ConfigError(f"{path} can't be read: {error}", hint=hint) from None
        if not isinstance(values, dict) or values.pop("version", None) != _VERSION:
            raise ConfigError(f"{path} is from another version of the toolkit", hint="use the version that wrote it")
        try:
            return cls(path, **values)
        except TypeError as error:
            raise ConfigError(f"{path} is malformed: {error}") from None

    def bind(self, account: str, region: str) -> None:
        """Set where the deployment is. A folder has one deployment: a second one would make it lose the first."""
        if self.made and (self.account, self.region) != (account, region):
            raise ConfigError(
                f"this agent is deployed in {self.region}, account {self.account}; not in {region}, account {account}",
                hint="destroy that deployment first, or deploy from a copy of the folder",
            )
        self.account, self.region = account, region

    def add(self, kind: str, name: str) -> None:
        """Record that the deployment created a resource."""
        if not self.has(kind, name):
            self.made.append({"kind": kind, "name": name})
            self.save()

    def remove(self, kind: str, name: str) -> None:
        """Record that a resource is gone."""
        self.made.remove({"kind": kind, "name": name})
        self.save()

    def has(self, kind: str, name: str) -> bool:
        return {"kind": kind, "name": name} in self.made

    def save(self) -> None:
        """Write the file atomically, or delete it if the deployment has nothing left."""
        if not self.made and self.arn is None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            return
        values = {name: value for name, value in vars(self).items() if name != "path"}
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps({"version": _VERSION, **values}, indent=2) + "\n", encoding="utf-8")
        os.replace(fresh, self.path)
