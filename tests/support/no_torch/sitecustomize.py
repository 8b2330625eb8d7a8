"""On PYTHONPATH, this makes an interpreter one without PyTorch, as the `gateway` extra alone installs it.

Transformers imports PyTorch wherever it finds it, for its tokenizers too: half the time that a gateway takes to start.
"""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]
