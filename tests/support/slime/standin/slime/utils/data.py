"""`slime.utils.data`: a JSONL file as samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .types import Sample


class Dataset:
    """The samples of a file."""

    def __init__(
        self,
        path: str,
        tokenizer: Any,
        processor: Any,
        max_length: int | None,
        *,
        prompt_key: str = "text",
        metadata_key: str = "metadata",
    ) -> None:
        assert (tokenizer, processor, max_length) == (None, None, None), "not stood in for"
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        self.samples = [Sample(prompt=row.get(prompt_key), metadata=row.get(metadata_key) or {}) for row in rows]
