"""What a deployment made, noted in the agent's folder as it is made: what `destroy` goes by, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError

FILE = ".agentcore-rl.json"
_VERSION = 1


@dataclass
class State:
    """`made` has what exists because of us, oldest first; `settings` is what the last deploy was told."""

    path: Path
    account: str | None = None
    region: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    made: list[dict[str, str]] = field(default_factory=list)
    arn: str | None = None
    image: str | None = None

    @classmethod
    def load(cls, folder: Path) -> State:
        """The state of an agent's folder; an empty one if it was never deployed."""
        path = folder / FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} can't be read: {error}", hint="restore it: it says what deploy made") from None
        if not isinstance(values, dict) or values.pop("version", None) != _VERSION:
            raise ConfigError(f"{path} is from another version of the toolkit", hint="use the one that wrote it")
        try:
            return cls(path, **values)
        except TypeError as error:
            raise ConfigError(f"{path} is malformed: {error}") from None

    def check_place(self, account: str, region: str) -> None:
        """Refuse to mix deployments: what was made elsewhere would be forgotten."""
        if self.made and (self.account, self.region) != (account, region):
            raise ConfigError(
                f"this agent is deployed in {self.region}, account {self.account}; not in {region}, account {account}",
                hint="destroy that deployment first, or deploy from a copy of the folder",
            )
        self.account, self.region = account, region

    def note(self, kind: str, name: str, **more: str) -> None:
        """Something exists now because of us."""
        if not self.has(kind, name):
            self.made.append({"kind": kind, "name": name, **more})
            self.save()

    def forget(self, kind: str, name: str) -> None:
        """It is gone."""
        self.made = [item for item in self.made if (item["kind"], item["name"]) != (kind, name)]
        self.save()

    def has(self, kind: str, name: str) -> bool:
        return any((item["kind"], item["name"]) == (kind, name) for item in self.made)

    def save(self) -> None:
        """Write it whole or not at all; nothing made, nothing kept."""
        if not self.made and self.arn is None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            return
        values = {name: value for name, value in vars(self).items() if name != "path"}
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps({"version": _VERSION, **values}, indent=2) + "\n", encoding="utf-8")
        os.replace(fresh, self.path)
