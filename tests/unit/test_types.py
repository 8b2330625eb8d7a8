from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import KeyInvalid
from agentcore_rl_toolkit.types import RolloutId, Status, check_key, check_prefix, check_segment

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


@pytest.mark.parametrize(
    ("segment", "says"),
    [
        (7, "must be a string, not int"),
        ("", "is empty"),
        (" \t", "is empty"),
        ("..", "starts with a dot"),
        (".x", "starts with a dot"),
        ("a/b", "contains a slash"),
        ("a\x00b", "control character"),
        ("a\x7fb", "control character"),
        ("a\\b", "a backslash"),
        ("\ud800", "not valid Unicode"),
        ("é" * 128, "256 bytes long"),
    ],
)
def test_what_is_no_segment(segment: object, says: str) -> None:
    with pytest.raises(KeyInvalid, match=f"^row .*{says}"):
        check_segment(segment, "row")


def test_the_longest_segment_is_counted_in_bytes() -> None:
    assert check_segment("é" * 127 + "x", "row")


def test_ids_and_keys_are_strings() -> None:
    with pytest.raises(KeyInvalid, match="exp_id must be a string, not int"):
        RolloutId(7, "row", "s")  # type: ignore[arg-type]
    with pytest.raises(KeyInvalid, match="key must be a string, not bytes"):
        check_key(b"exp/row/s.json")  # type: ignore[arg-type]


def test_only_the_last_json_of_a_key_is_its_ending() -> None:
    id = RolloutId("exp.json", "row.json", "a.json.b")
    assert RolloutId.from_key(id.result_key) == id


def test_a_prefix_may_end_anywhere_in_a_key() -> None:
    for prefix in ("", "e", "exp/", "exp/ro"):
        assert check_prefix(prefix) == prefix
