"""A Transformers model in this process, as an engine: for laptops, tests, and a trainer that shares its weights.

    engine.py    the asyncio side: what a request may ask, and its stream
    decoder.py   the thread that samples, and what happens between two steps
    queue.py     who waits, and whose prompts are prefilled next
    batch.py     who is decoded together
    runner.py    the model: one forward pass, its training flags, its experts
    layout.py    how passes are run, plainly or in fixed shapes, and which the model can have
    kv.py        keys and values, plainly: of the batch, and kept for the next turn
    prefill.py   keys and values of prompts, plainly
    fixed.py     both in fixed shapes, for GPUs
    attention.py what a step in fixed shapes attends with
    graphs.py    passes of fixed shape, repeated as CUDA graphs
    sampler.py   logits in, token ids and logprobs out
    grammar.py   what a JSON schema still allows
    sequence.py  one sequence on its way
    limits.py    how much is taken on, and how much was done

Needs the extra `transformers`; `json_schema` also `llguidance`.
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
