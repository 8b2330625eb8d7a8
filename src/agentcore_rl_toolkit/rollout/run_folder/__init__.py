"""The folder of a run: every rollout, an index of them, and what reads them while the run continues.

In: judged rollouts and groups. Out: append-only files, and `open_run`, which finds any rollout of them without reading
all. It refuses to look at a trainer, and its reader writes nothing. `docs/reference/run-folder.md` has the format.

Imports `client`, `engine`, `gateway`.
"""

from .run_index import PHASES, Entry
from .run_reader import Run, open_run
from .run_writer import RunPart, RunWriter

__all__ = ["PHASES", "Entry", "Run", "RunPart", "RunWriter", "open_run"]
