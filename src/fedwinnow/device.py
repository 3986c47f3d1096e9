"""The choice of the device, and the setting that makes a process keep freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    import torch


VARIABLE = "FEDWINNOW_DEVICE"


def choose_device(name: str | None = None, *, mixed_precision: bool = False) -> torch.device:
    """The device of this name, else of the environment variable FEDWINNOW_DEVICE, else the fastest of this machine.

    Mixed precision is refused on a device where it would have no effect.
    """
    import torch

    present = devices_present()
    asked, by = (name, "as --device") if name else (os.environ.get(VARIABLE), f"by {VARIABLE}")
    wanted = present[0] if not asked or asked.strip().lower() == "auto" else asked.strip().lower()
    if wanted not in present:
        raise UsageError(
            f"'{asked}' was given {by}; this machine has: {', '.join(present)} (or auto). Leave it out to take the "
            "fastest; `fedwinnow doctor` says what torch can see."
        )
    if mixed_precision and not wanted.startswith("cuda"):
        raise UsageError(
            f"--mixed-precision was given, and the device is {wanted}; allowed: with a CUDA device only. Leave it out, "
            f"or use another device; this machine has: {', '.join(present)}."
        )
    return torch.device(wanted)


def devices_present() -> list[str]:
    """The names of the devices of this machine, fastest first."""
    import torch

    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ["cuda", *(f"cuda:{number}" for number in range(cards))] if cards else []
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


# Names and numbers from glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, which is faster; only glibc on Linux has this setting."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(TOP_PAD, 2**28)


def peak_memory() -> float | None:
    """The most memory this process, without workers, has held since it began, in MB; None where nobody says."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
