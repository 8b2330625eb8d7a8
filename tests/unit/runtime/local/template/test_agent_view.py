"""What of an agent's folder is shown itself because it is too large to copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.runtime.local.template.agent_view import too_large

NAMES = st.sampled_from([f"{folder}{n}.bin" for folder in ("", "a/", "a/b/", "c/") for n in range(60)])


@given(st.dictionaries(NAMES, st.integers(0, 50)), st.integers(0, 3000))
def test_the_rest_is_small_enough_and_nothing_is_shown_without_need(sizes: dict[str, int], most: int) -> None:
    shown = too_large(sizes, most)
    rest = {path: size for path, size in sizes.items() if path not in shown and path.partition("/")[0] not in shown}
    assert sum(rest.values()) <= most
    if sum(sizes.values()) <= most:
        assert shown == []


def test_many_large_files_are_shown_as_their_folder() -> None:
    assert too_large({"rl_app.py": 1, "few/x.bin": 30} | {f"many/{n}.bin": 10 for n in range(200)}, 100) == ["many"]


def test_files_at_the_top_are_shown_one_by_one() -> None:
    assert len(too_large({f"{n}.bin": 1 for n in range(200)}, 100)) == 100
