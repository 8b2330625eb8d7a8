"""Groups of rollouts through a SageMaker training session: boto3's `ExecuteTrainingOperation`, against its wire."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from agentcore_rl_toolkit.backends.loop.service_examples import to_examples
from agentcore_rl_toolkit.backends.sagemaker.session.convert import to_session_datum
from agentcore_rl_toolkit.engine.services.training_session import TrainingSession
from agentcore_rl_toolkit.rollout import Group
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from support.backends import Seen
from support.fake_training_session import FakeTrainingSession
from support.reply_policy import Seen as Datum

PASSES_ON: frozenset[str] = frozenset({"several rows", "logprobs"})


def seen(groups: Sequence[Group], n: int, credit: TurnCredit | None = None) -> list[Seen]:
    """What reaches the service's loss."""
    examples = to_examples(groups, credit=credit)
    with FakeTrainingSession().serving() as fake, pytest.MonkeyPatch.context() as patch:
        for name, value in fake.env.items():
            patch.setenv(name, value)
        fake.start_session("contract")
        session = TrainingSession("contract")
        datums = [to_session_datum(example) for example in examples]
        session.train("forwardBackward", {"lossFnName": "importance_sampling", "datumList": datums})
        session.close()
    return [
        _seen(datum, None if credit else example.advantage)
        for datum, example in zip(fake.data[0], examples, strict=True)
    ]


def _seen(datum: Datum, advantage: float | None) -> Seen:
    inputs = datum.inputs
    ids = (*datum.tokens, int(inputs["target_tokens"][-1]))
    assert list(ids[1:]) == inputs["target_tokens"]
    trained = [i for i, weight in enumerate(inputs["weights"]) if weight]
    given = tuple(inputs["advantages"][i] for i in trained)
    assert not any(inputs["advantages"][i] or inputs["logprobs"][i] for i in range(len(ids) - 1) if i not in trained)
    assert advantage is None or set(given) == {float(np.float32(advantage))}
    logprobs = tuple(inputs["logprobs"][i] for i in trained)
    return Seen(ids, tuple(i + 1 for i in trained), logprobs, advantage or 0.0, given)
