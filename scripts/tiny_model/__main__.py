"""Makes the built-in policy: `python scripts/tiny_model <folder>`, or `make tiny-model`.

The same seed gives the same files on the same machine with the same versions. It takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from corpus import MEDIOCRE, TOOLS, conversations
from tokenizer import make_tokenizer
from train import Shape, make_model, train

_TEXTS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    for field in dataclasses.fields(Shape):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    args = vars(parser.parse_args())
    make(args.pop("folder"), args.pop("seed"), Shape(**args))


def make(folder: Path, seed: int, shape: Shape) -> None:
    """Tokenizer and model, into a folder."""
    started = time.monotonic()
    torch.manual_seed(seed)
    torch.set_num_threads(2)  # sums depend on how they are split
    tokenizer = make_tokenizer(list(islice(conversations(MEDIOCRE, seed), _TEXTS)), TOOLS)
    model = make_model(tokenizer, shape)
    train(model, tokenizer, shape, seed)
    save(model, tokenizer, folder)
    print(f"{model.num_parameters():,} parameters in {folder}, after {time.monotonic() - started:.0f} s")


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Half precision in the file; the configuration has it loaded in single, which is quicker on a CPU."""
    model.half().save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # it is package data, for everybody who installs the package


if __name__ == "__main__":
    main()
