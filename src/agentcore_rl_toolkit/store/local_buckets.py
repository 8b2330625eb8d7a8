"""Buckets on this machine: where an agent that is given by its path keeps what it stores in a bucket.

Such an agent runs in a local runtime of the client's own, whose S3 keeps each bucket as a folder. The folders outlive
the runtime, in the user's data directory, so that results stay and an experiment can be resumed.
"""

from __future__ import annotations

import os


def buckets_folder() -> str:
    """The folder of all buckets: `agentcore-rl/buckets` in `$XDG_DATA_HOME`, by default `~/.local/share`."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(os.path.abspath(home), "agentcore-rl", "buckets")


def bucket_folder(store: str) -> str | None:
    """The folder of the bucket, and of the prefix in it, that `store` names; None if it names a directory.

    >>> import os
    >>> bucket_folder("s3://my-bucket/a/prefix") == os.path.join(buckets_folder(), "my-bucket", "a", "prefix")
    True
    >>> bucket_folder("/tmp/results") is None
    True
    """
    if os.path.isabs(store) or store.startswith("file:"):
        return None
    return os.path.join(buckets_folder(), *store.removeprefix("s3://").strip("/").split("/"))
