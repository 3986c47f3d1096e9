"""The choice of the device, and the setting that makes a process keep freed memory."""

from __future__ import annotations

import ctypes
import getpass
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedwinnow.errors import UsageError
from fedwinnow.files import try_lock

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


def settle(device: torch.device) -> None:
    """All settings of torch on which the numbers of a CUDA card depend; on other devices nothing is changed.

    The same algorithms every time, and whole single precision: TF32 keeps ten bits of a number's fraction.
    """
    import torch

    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the card is first used
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time only
    torch.use_deterministic_algorithms(True, warn_only=True)  # some operations exist in one form only


def settings_in_force(device: torch.device) -> dict[str, object]:
    """What `settle` has settled, as torch has it now, for environment.json; empty where the device is no CUDA card."""
    import torch

    if device.type != "cuda":
        return {}
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }


def uploaded(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device; to a CUDA card from pinned memory, without waiting for it."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU; from a CUDA card all at once, with one wait at the end instead of one for each."""
    import torch

    found, waits = {}, False
    for name, tensor in tensors.items():
        if tensor.device.type == "cuda":
            room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            found[name], waits = room.copy_(tensor, non_blocking=True), True
        else:
            found[name] = tensor.cpu()
    if waits:
        torch.cuda.synchronize()
    return found


SHARE = 4  # samples that stay on a card take up to a quarter of its free memory


class Uploads:
    """Uploads the samples of each client once; those not used for longest make room for others."""

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.device, self.limit = device, limit
        self.held: dict[str, torch.Tensor] = {}  # the last used last
        self.size = 0

    @property
    def useful(self) -> bool:
        """Whether anything must be uploaded at all."""
        return self.device.type != "cpu"

    def get(self, name: str, samples: torch.Tensor) -> torch.Tensor:
        """The samples of this name on the device."""
        found = self.held.pop(name, None)
        if found is None:
            found = uploaded(samples, self.device)
            self.size += bytes_of(found)
        self.held[name] = found
        self.make_room()
        return found

    def make_room(self) -> None:
        """Forget what was not used for longest; the last one is in use."""
        import torch

        if self.limit is None:
            self.limit = torch.cuda.mem_get_info(self.device)[0] // SHARE if self.device.type == "cuda" else 0
        while self.size > self.limit and len(self.held) > 1:
            self.size -= bytes_of(self.held.pop(next(iter(self.held))))


def bytes_of(tensor: torch.Tensor) -> int:
    """The memory that a tensor takes."""
    return tensor.numel() * tensor.element_size()


def usable_cores() -> int:
    """The cores that this process may use: on a cluster, those of its share of a machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cards_present() -> list[str]:
    """The names of the single CUDA cards."""
    return [name for name in devices_present() if name.startswith("cuda:")]


MINE: dict[str, IO[str]] = {}  # the card of this process, with the file whose lock says so


def own_card(asked: str | None) -> str | None:
    """A card that no other process of fedwinnow uses, for one of several runs at a time; else what was asked for.

    A process keeps its card until it ends. The lock is a file, because these processes do not know each other. Where
    all cards are taken, the processes share them evenly.
    """
    cards, chosen = cards_present(), choose_device(asked)
    if len(cards) < 2 or chosen.type != "cuda" or chosen.index is not None:
        return asked
    if not MINE:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = shown if len(shown) == len(cards) else cards
        for card, name in zip(cards, names, strict=True):
            stream = lock_file(name).open("a+")
            if try_lock(stream.fileno()):
                MINE[card] = stream
                break
            stream.close()
    return next(iter(MINE), cards[os.getpid() % len(cards)])


def lock_file(name: str) -> Path:
    """The file whose lock says that a card is taken on this machine by this user."""
    folder = Path(tempfile.gettempdir()) / f"fedwinnow-cards-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / re.sub(r"[^A-Za-z0-9-]", "_", name)


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
