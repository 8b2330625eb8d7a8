"""The notebook's cells, one after the other in a fresh process, with fewer steps and rows than its reader has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from support.docs import ROOT
from support.process import clean_env

NOTEBOOK = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
SHORT = {
    "steps=8,\n    rows_per_step=8,\n    n=8,": "steps=1,\n    rows_per_step=2,\n    n=2,",
    "rows[256:]}": "rows[256:258]}",
}
CHECKS = """
assert [len(group.rollouts) for group in groups] == [4, 4] and row.trained > 0
assert summary["steps"] == 1 and summary["trained"] == 4 and summary["after"] is not None
assert len(axes.lines[0].get_xdata()) == 1
"""


@pytest.mark.timeout(300)
def test_every_cell_runs(tmp_path: Path) -> None:
    code = "\n\n".join("".join(cell["source"]) for cell in CELLS)
    for long, short in SHORT.items():
        assert long in code
        code = code.replace(long, short)
    (tmp_path / "cells.py").write_text(code + CHECKS)
    env = clean_env(MPLBACKEND="Agg", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", HOME=str(tmp_path))
    command = [sys.executable, "cells.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
