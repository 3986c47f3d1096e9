"""Keeping freed memory: training asks for the same large blocks again and again.

Given back to the system, each of them comes as fresh pages that must be zeroed one by one; a step of a convolutional
network then takes about a sixth longer.
"""

from __future__ import annotations

import ctypes
import sys

# Names and numbers of glibc's malloc.h; of other systems' allocators nothing is asked.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let this process keep what it frees, where its C library can be told so."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(TOP_PAD, 2**28)
