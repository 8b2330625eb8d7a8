"""One of several processes that train together, several steps of their own; the first one writes the gradients."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import torch

from support.backends.trl import stepped


def main(folder: Path) -> None:
    steps = pickle.loads((folder / "steps").read_bytes())
    gradients = {name: stepped(groups, folder, **config).gradient for name, (groups, config) in steps.items()}
    if os.environ["RANK"] == "0":
        torch.save(gradients, folder / "gradients.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads may abort a process that takes them down


if __name__ == "__main__":
    main(Path(sys.argv[1]))
