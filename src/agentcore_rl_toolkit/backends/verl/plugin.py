"""Lets stock verl understand `rollout.name=agentcore` (an entry point of the group `verl.plugins`).

`python -m verl.trainer.main_ppo` imports verl, and verl imports this, before Hydra reads the command line. Command
lines without that override stay unchanged. `VERL_USE_EXTERNAL_PLUGINS=none` switches the plugin off.
"""

from __future__ import annotations

import sys

from .overrides import translate

sys.argv[1:] = translate(sys.argv[1:])
