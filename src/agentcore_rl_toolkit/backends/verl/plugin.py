"""What verl loads by itself (entry points of the group `verl.plugins`): the spelling `rollout.name=agentcore`.

`python -m verl.trainer.main_ppo` imports verl, and with it this, before Hydra reads the command line. Other programs'
command lines, and those without that override, stay as they are. `VERL_USE_EXTERNAL_PLUGINS=none` switches it off.
"""

from __future__ import annotations

import sys

from .overrides import translate

sys.argv[1:] = translate(sys.argv[1:])
