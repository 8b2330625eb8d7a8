from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import KeyInvalid
from agentcore_rl_toolkit.types import RolloutId, Status

segments = st.text(min_size=1, max_size=60).filter(lambda s: len(s.encode(errors="replace")) < 240)


def test_every_status_is_in_the_table() -> None:
    for status in Status:
        assert status.meaning.endswith(".")
    assert [s for s in Status if s.status_code == 200] == [Status.COMPLETED]


@given(st.lists(segments, min_size=1, max_size=3).map("/".join), segments, segments)
def test_a_key_is_sound_and_reads_back_or_is_refused(exp_id: str, input_id: str, session_id: str) -> None:
    try:
        id = RolloutId(exp_id, input_id, session_id)
    except KeyInvalid:
        return
    assert RolloutId.from_key(id.result_key) == id
    assert not id.result_key.startswith(("/", "."))
    assert "//" not in id.result_key
    assert "/." not in id.result_key


@pytest.mark.parametrize("key", ["", "a", "a/b.json", "a/b/c", "a/b/c.txt", "/a/b/c.json"])
def test_what_is_no_result_key(key: str) -> None:
    with pytest.raises(KeyInvalid):
        RolloutId.from_key(key)


def test_the_longest_session_id() -> None:
    assert RolloutId("e", "i", "s" * 250).result_key.endswith(".json")
    with pytest.raises(KeyInvalid, match="255"):
        RolloutId("e", "i", "s" * 251)
