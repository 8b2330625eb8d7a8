"""Everything at scale, part by part; each part is a module of its own and may be run alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = ("scale_client",)


def main() -> None:
    for part in PARTS:
        subprocess.run([sys.executable, str(Path(__file__).with_name(f"{part}.py")), *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
