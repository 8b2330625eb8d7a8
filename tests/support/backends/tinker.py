"""Groups of rollouts through Tinker: its SDK's `forward_backward`, against a server of its wire."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tinker

from agentcore_rl_toolkit.backends.tinker.convert import to_datum, to_examples
from agentcore_rl_toolkit.engine.services.tinker import close_service
from agentcore_rl_toolkit.rollout import Group
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from support.backends import Seen
from support.fake_tinker import MODEL, FakeTinker
from support.reply_policy import Seen as Datum

PASSES_ON: frozenset[str] = frozenset({"several rows", "logprobs"})


def seen(groups: Sequence[Group], n: int, credit: TurnCredit | None = None) -> list[Seen]:
    """What reaches the service's loss."""
    examples = to_examples(groups, credit=credit)
    with FakeTinker().serving() as fake:
        service = tinker.ServiceClient(base_url=fake.url, api_key="tml-test")
        training = service.create_lora_training_client(base_model=MODEL, rank=8)
        training.forward_backward([to_datum(example) for example in examples], "importance_sampling").result()
        close_service(service)
    return [
        _seen(datum, None if credit else example.advantage)
        for datum, example in zip(fake.data[0], examples, strict=True)
    ]


def _seen(datum: Datum, advantage: float | None) -> Seen:
    targets, inputs = datum.inputs["target_tokens"], datum.inputs
    ids = (*datum.tokens, int(targets[-1]))
    assert list(ids[1:]) == targets
    pairs = zip(inputs["logprobs"], inputs["advantages"], strict=True)
    trained = [i for i, (logprob, weighted) in enumerate(pairs) if logprob or weighted]
    given = tuple(inputs["advantages"][i] for i in trained)
    assert advantage is None or set(given) == {float(np.float32(advantage))}
    logprobs = tuple(inputs["logprobs"][i] for i in trained)
    return Seen(ids, tuple(i + 1 for i in trained), logprobs, advantage or 0.0, given)
