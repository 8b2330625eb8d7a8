"""Everything at scale, one part after the other. Each is a module that may be run alone, with options of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = ("scale_client", "scale_gateway", "scale_faults", "scale_local")


def main() -> None:
    for part in PARTS:
        subprocess.run([sys.executable, str(Path(__file__).with_name(f"{part}.py"))], check=True)


if __name__ == "__main__":
    main()
