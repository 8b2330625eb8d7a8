"""A log's folder beside its segments: whose it is, and which weights are sampled, kept for the next process."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

_NAME = "weights.json"


class Weights(msgspec.Struct):
    """What the engine samples with, as far as it was told."""

    version: str | None = None
    paused: bool = False


def write_weights(folder: Path, weights: Weights) -> None:
    """In place of what was there."""
    path = folder / _NAME
    path.with_suffix(".new").write_bytes(msgspec.json.encode(weights))
    path.with_suffix(".new").replace(path)


def read_weights(folder: Path) -> Weights:
    """What was written last."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=Weights)
    except FileNotFoundError:
        return Weights()
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("which weights were sampled is not known: %s", error)
        return Weights()


def claim(folder: Path) -> int:
    """The folder for this gateway alone: two that append to one segment would lose each other's turns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise OSError("another gateway writes to it") from error
    return descriptor


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still found at its path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False
