"""`python -m agentcore_rl_toolkit.cli` is `agentcore-rl`."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
