"""Where results land: S3 with SQS announcements, or a directory. `open_store` opens either by name.

In: a document and its key. Out: documents, keys, and announcements of new keys. A store never overwrites a document,
and never reads one: results are JSON for `agent/result.py`, bytes here.

Imports no other station.
"""

from .base import Store, absolute_store, open_store

__all__ = ["Store", "absolute_store", "open_store"]
