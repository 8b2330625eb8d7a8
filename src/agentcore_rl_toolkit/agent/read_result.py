"""Reading a result from a store. What agents store is not to be trusted: whatever it is, it costs one error."""

from __future__ import annotations

from ..errors import ResultUnreadable, StoreError
from ..store.base import Store
from ..types import LARGEST_RESULT
from .result import Result


def read_result(store: Store, key: str) -> Result:
    """The result under `key`; `ResultUnreadable` if it is too large, or not one that could be used."""
    try:
        return Result.from_bytes(store.get(key, limit=LARGEST_RESULT))
    except StoreError:  # some are ValueErrors too
        raise
    except ValueError as error:
        raise ResultUnreadable(f"{key!r} in {store.url} can't be read as a result: {error}") from None
