"""Which store a name chooses."""

from __future__ import annotations

import pytest

from agentcore_rl_toolkit.errors import ConfigError, KeyInvalid
from agentcore_rl_toolkit.store import open_store


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("my-bucket", "s3://my-bucket"),
        ("s3://my-bucket", "s3://my-bucket"),
        ("s3://my-bucket/", "s3://my-bucket"),
        ("s3://my-bucket/a/b/", "s3://my-bucket/a/b"),
        ("/no/such/dir", "/no/such/dir"),
        ("file:///no/such%20dir", "/no/such dir"),
        ("file://localhost/no/such", "/no/such"),
    ],
)
def test_one_string_chooses_the_store(url: str, opened: str) -> None:
    store = open_store(url)
    assert store.url == opened
    assert open_store(store.url).url == opened


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "./runs",
        "runs/demo",
        "My_Bucket",
        "a",
        "s3://",
        "s3:///x",
        "http://x/y",
        "file://host/x",
        "file:x",
        None,
        7,
    ],
)
def test_what_names_no_store_is_refused(url: object) -> None:
    with pytest.raises(ConfigError):
        open_store(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["../up", "a/../b", "a//b"])
def test_a_prefix_cannot_climb(prefix: str) -> None:
    with pytest.raises(KeyInvalid):
        open_store(f"s3://my-bucket/{prefix}")
