"""Where results land: `open_store("bucket")`, `open_store("s3://bucket/prefix")`, `open_store("/a/directory")`."""

from .base import Store, open_store

__all__ = ["Store", "open_store"]
