"""Starting a Python that imports nothing from where its caller happens to be.

Templates and probes have rights that an agent's code must not get. A plain `python -m` would import modules from the
working directory, often the agent's folder, and from `PYTHONPATH`, before those of the installation.
"""

from __future__ import annotations

import sys
from pathlib import Path

WORKING_DIRECTORY = "/"

_START = """
import sys
home = sys.argv.pop(1)
if home not in sys.path:
    sys.path.insert(0, home)
    import agentcore_rl_toolkit
    sys.path.append(sys.path.pop(0))
from {module} import main
main()
"""


def isolated_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `main` of one of our modules; the toolkit is found where it runs from now."""
    home = str(Path(__file__).resolve().parents[4])
    return [sys.executable, "-I", "-u", "-B", "-c", _START.format(module=module), home, *arguments]
