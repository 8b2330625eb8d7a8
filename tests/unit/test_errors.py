from __future__ import annotations

import pickle

import pytest

from agentcore_rl_toolkit import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_in_the_tree_and_survives_pickling(name: str) -> None:
    kind = getattr(errors, name)
    error = kind("it broke", hint="mend it")
    assert isinstance(error, errors.AgentCoreRLError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "it broke\nhint: mend it"


def test_the_docstring_draws_the_tree() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert f" {name} " in errors.__doc__
