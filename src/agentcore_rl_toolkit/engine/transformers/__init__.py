"""A Transformers model in this process, as an engine: for laptops, tests, and a trainer that shares its weights.

In: token ids with sampling settings. Out: tokens as they are sampled, with their logprobs. It batches requests as they
arrive, on CPU and on CUDA alike. It refuses models without a plain key-value cache, and it never copies a weight.
`json_schema` needs `llguidance`.

    engine.py        the asyncio side: checks requests, hands out streams
    decoder.py       the thread that samples, and what happens between two steps
    prefill.py       the queue of waiting sequences, and the passes over their prompts
    decode_batch.py  the running sequences, one token each per step
    kv_cache.py      keys and values: of the running batch, and kept for a session's next turn
    model_runner.py  the model: one forward pass, its training flags
    sampler.py       logits in, token ids and logprobs out

Imports no other station.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"{error}\nhint: pip install 'agentcore-rl-toolkit[transformers]'", name=error.name, path=error.path
    ) from error

from .engine import TransformersEngine

__all__ = ["TransformersEngine"]
