"""The guide's tables and its file are true."""

from __future__ import annotations

from pathlib import Path

import yaml

from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.backends.verl.environment import CPUS, DEFAULT_UNITS, UNITS, fit_cores
from agentcore_rl_toolkit.backends.verl.overrides import NEEDED, SETTINGS, run_overrides, write_overrides

GUIDE = (Path(__file__).parents[4] / "docs" / "guides" / "verl.md").read_text()


def table(marker: str) -> list[list[str]]:
    lines = GUIDE.split(f"<!-- {marker} -->")[1].strip().split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_what_verl_needs_to_be_told() -> None:
    told = [override.lstrip("+").partition("=") for override in write_overrides(NEEDED)]
    assert table("verl needs") == [[f"`{key}`", f"`{value}`"] for key, _, value in told]


def test_what_verl_has_keys_for() -> None:
    assert table("verl settings") == [[f"`{ours}`", f"`{key}`"] for ours, key in SETTINGS.items()]


def test_the_file_is_one_of_settings() -> None:
    text = GUIDE.split("<!-- verl file -->")[1].split("```yaml")[1].split("```")[0]
    values = yaml.safe_load(text)
    assert values.pop("backend") == "verl"
    settings = VerlSettings.from_mapping(values)
    assert {"data.train_batch_size=64", "actor_rollout_ref.actor.optim.lr=1e-6"} <= set(run_overrides(settings))


def test_what_few_cores_change() -> None:
    assert list(fit_cores(gpus=1, cores=1)) == [UNITS, CPUS]
    assert f"| `{UNITS}` | {fit_cores(gpus=1, cores=1)[UNITS]}, " in GUIDE
    assert f"| `{CPUS}` | the sum of the claims" in GUIDE
    assert DEFAULT_UNITS == 8
    assert "eight storage units" in GUIDE
