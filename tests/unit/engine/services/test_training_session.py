"""Operations of a training session: their order, and what a lost or refused request leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from agentcore_rl_toolkit.engine.services.training_session import TrainingSession
from agentcore_rl_toolkit.errors import EngineError
from support.fake_training_session import FakeTrainingSession

ADAM = {"adamParamsConfig": {"learningRate": 0.001}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTrainingSession]:
    with FakeTrainingSession().serving() as fake:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        fake.start_session("run")
        yield fake


def test_operations_are_numbered_and_executed_in_order(fake: FakeTrainingSession) -> None:
    session = TrainingSession("run")
    ids = [session.submit("optimizerStep", ADAM) for _ in range(3)]
    assert [session.result("optimizerStep", one)["metrics"] for one in ids] == [{"grad_norm": 1.0}] * 3
    assert fake.executed == [(1, "optimizerStep"), (2, "optimizerStep"), (3, "optimizerStep")]
    assert len({one["clientToken"] for one in fake.of("ExecuteTrainingOperation")}) == 3


@pytest.mark.parametrize("code", ["ThrottlingException", "InternalServerException", "cut"])
def test_a_call_is_repeated_with_its_number_and_its_token(fake: FakeTrainingSession, code: str) -> None:
    asked: Counter[str] = Counter()

    def fault(operation: str) -> str | None:
        asked[operation] += 1
        return code if asked[operation] == 1 and not operation.endswith("answered") else None

    fake.faults = fault
    TrainingSession("run").train("optimizerStep", ADAM)
    assert asked["ExecuteTrainingOperation"] == 2
    assert fake.executed == [(1, "optimizerStep")]


def test_an_operation_whose_answer_was_lost_is_executed_once(fake: FakeTrainingSession) -> None:
    asked: Counter[str] = Counter()

    def fault(operation: str) -> str | None:
        asked[operation] += 1
        return "cut" if operation == "ExecuteTrainingOperation answered" and asked[operation] == 1 else None

    fake.faults = fault
    TrainingSession("run").train("optimizerStep", ADAM)
    first, second = fake.of("ExecuteTrainingOperation")
    assert first == second
    assert len(fake.optimizer) == 1


def test_the_number_of_a_refused_operation_is_used_again(fake: FakeTrainingSession) -> None:
    session = TrainingSession("run")
    with pytest.raises(EngineError, match="out of bounds"):
        session.submit("optimizerStep", {"adamParamsConfig": {"learningRate": 7.0}})
    session.train("optimizerStep", ADAM)
    assert fake.executed == [(1, "optimizerStep")]


def test_an_outage_longer_than_the_patience_ends_the_call(fake: FakeTrainingSession) -> None:
    fake.faults = lambda operation: "InternalServerException"
    with pytest.raises(EngineError, match="injected"):
        TrainingSession("run", patience=0.1).train("optimizerStep", ADAM)


def test_an_operation_without_an_answer_is_sent_again_before_the_next(fake: FakeTrainingSession) -> None:
    """As after Ctrl-C: the service may have executed it."""
    fake.faults = lambda operation: "cut" if operation == "ExecuteTrainingOperation answered" else None
    session = TrainingSession("run", patience=0.0)
    with pytest.raises(EngineError, match="Connection"):
        session.submit("optimizerStep", ADAM)
    fake.faults = lambda operation: None
    session.train("optimizerStep", ADAM)
    assert fake.executed == [(1, "optimizerStep"), (2, "optimizerStep")]
