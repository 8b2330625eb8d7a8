"""Which files and folders of an agent are mounted because they are too large to copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.runtime.local.sandbox.agent_mounts import choose_mounts

NAMES = st.sampled_from([f"{folder}{n}.bin" for folder in ("", "a/", "a/b/", "c/") for n in range(60)])


@given(st.dictionaries(NAMES, st.integers(0, 50)), st.integers(0, 3000))
def test_the_rest_is_small_enough_and_nothing_is_mounted_without_need(sizes: dict[str, int], most: int) -> None:
    mounted = choose_mounts(sizes, most)
    rest = {path: size for path, size in sizes.items() if path not in mounted and path.partition("/")[0] not in mounted}
    assert sum(rest.values()) <= most
    if sum(sizes.values()) <= most:
        assert mounted == []


def test_many_large_files_are_mounted_as_their_folder() -> None:
    assert choose_mounts({"rl_app.py": 1, "few/x.bin": 30} | {f"many/{n}.bin": 10 for n in range(200)}, 100) == ["many"]


def test_files_at_the_top_are_mounted_one_by_one() -> None:
    assert len(choose_mounts({f"{n}.bin": 1 for n in range(200)}, 100)) == 100
