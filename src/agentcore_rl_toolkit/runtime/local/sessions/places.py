"""How many sessions may run: one count for the workers of a runtime, which are processes.

A place is a unit of a kernel counter that all workers hold (an eventfd), so that no two take the last one. Each worker
also notes how many it holds, in memory that all share: if it is killed, those are given back.
"""

from __future__ import annotations

import mmap
import os
import struct

_COUNT = struct.Struct("=Q")


class Places:
    """The places as one process sees them."""

    def __init__(self, counter: int, notes: int, slot: int) -> None:
        """`counter` and `notes` are descriptors, `slot` says which note is this process's."""
        self.counter, self.notes, self.slot = counter, notes, slot
        self._memory = mmap.mmap(notes, os.fstat(notes).st_size)

    @classmethod
    def make(cls, most: int, workers: int = 1) -> list[Places]:
        """All of them, one object for each worker."""
        counter = os.eventfd(most, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        notes = os.memfd_create("places", os.MFD_CLOEXEC)
        os.ftruncate(notes, workers * _COUNT.size)
        return [cls(counter, notes, slot) for slot in range(workers)]

    @property
    def held(self) -> int:
        """How many places the worker of this slot holds."""
        count: int = _COUNT.unpack_from(self._memory, self.slot * _COUNT.size)[0]
        return count

    def take(self) -> bool:
        """Take a place; False if all are taken."""
        try:
            os.eventfd_read(self.counter)
        except BlockingIOError:
            return False
        self._note(self.held + 1)
        return True

    def give_back(self, count: int = 1) -> None:
        if count:
            self._note(self.held - count)
            os.eventfd_write(self.counter, count)

    def _note(self, held: int) -> None:
        _COUNT.pack_into(self._memory, self.slot * _COUNT.size, held)
