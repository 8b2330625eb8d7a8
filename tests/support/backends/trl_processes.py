"""One of several processes that train together: a step for each loss; the first one writes the gradients."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import torch

from support.backends.trl import stepped


def main(folder: Path, losses: list[str]) -> None:
    groups = pickle.loads((folder / "groups").read_bytes())
    for loss in losses:
        trainer = stepped(groups, folder, loss_type=loss)
        if os.environ["RANK"] == "0":
            torch.save(trainer.gradient, folder / f"{loss}.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads may abort a process that takes them down


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
