"""How likely the trainer found each trained token, against the sampler: `ratios/step-N.jsonl`, one line for each row.

A line has the session, the row's number, and log(trainer ÷ sampler) of the row's trained tokens, in their order. They
are known only once the step has been trained on, so they can't be in the rollout's own line.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

LogRatios = Mapping[tuple[str, int], npt.NDArray[Any]]
"""For rows by session and number: log(trainer ÷ sampler) of each trained token."""
_KIND = "<f2"
_LARGEST = 60_000.0  # half precision ends there


def ratio_file(folder: Path, name: str) -> Path:
    """Where the ratios of a file of rollouts are."""
    return folder / "ratios" / PurePosixPath(name).name


def write_ratios(path: Path, ratios: LogRatios) -> None:
    """Append the ratios of some rows."""
    if not ratios:
        return
    path.parent.mkdir(exist_ok=True)
    lines = []
    for (session_id, row), values in ratios.items():
        packed = np.clip(np.asarray(values, np.float64), -_LARGEST, _LARGEST).astype(_KIND).tobytes()
        known = {"session_id": session_id, "row": row, "log_ratios": base64.b64encode(packed).decode()}
        lines.append(json.dumps(known, separators=(",", ":")) + "\n")
    with path.open("a") as file:
        file.write("".join(lines))


def read_ratios(path: Path, session_id: str, row: int) -> npt.NDArray[np.float32] | None:
    """The ratios of one row; None if the trainer didn't say, or a kill cut them off."""
    start = json.dumps({"session_id": session_id, "row": row}, separators=(",", ":"))[:-1].encode() + b","
    try:
        with path.open("rb") as file:
            lines = [line for line in file if line.startswith(start) and line.endswith(b"\n")]
        packed = base64.b64decode(json.loads(lines[-1])["log_ratios"], validate=True)
        return np.frombuffer(packed, _KIND).astype(np.float32)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
