"""Plays runs on the processor and on a pretended card, and prints for each whether they are alike, as lines of JSON.

    python on_pretend_card.py BUILD_FOLDER SPEC...

A process of its own, because a device cannot be taken out of torch again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import types
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.utils import cpp_extension

import fedwinnow
from fedwinnow import device
from fedwinnow.testing import toy_data

TOYS = {"data": toy_data(60), "batch_size": 5, "model": "mlp", "rounds": 5}
IMAGES = {"data": "digits:train=200", "batch_size": 8, "model": "lenet", "rounds": 2, "views": "strong"}
COMMON = {"clients": 2, "epochs": 1, "participation": 1.0, "trusted": 10, "public": 10, "noise": "constant:rate=0.3"}


def pretended(folder: str) -> types.ModuleType:
    """A device `card` whose tensors are apart from those of the processor; the module counts waits."""
    source = Path(__file__).with_suffix("").with_name("pretend_card.cpp")
    card = cpp_extension.load("pretend_card", [str(source)], build_directory=folder, extra_cflags=["-O0"])
    torch.utils.rename_privateuse1_backend("card")
    known = {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0}
    known |= {"_is_in_bad_fork": lambda: False, "manual_seed_all": lambda seed: None}
    torch._register_device_module("card", types.SimpleNamespace(**known))
    torch.utils.generate_methods_for_privateuse1_backend()
    device.devices_present = lambda: ["cpu", "card"]
    return card


def played(spec: str, settings: dict, where: str) -> list[np.ndarray]:
    """What a run says in the end, and its accuracies."""
    with tempfile.TemporaryDirectory() as folder:
        result = fedwinnow.run(method=spec, device=where, out=folder, **COMMON, **settings)
        verdicts = np.load(Path(folder) / "verdicts.npz")
        return [verdicts["p_wrong"], np.asarray(result.curve("accuracy")[1])]


def compared(spec: str, settings: dict) -> dict:
    """How far apart the numbers of both devices are."""
    try:
        pairs = zip(played(spec, settings, "cpu"), played(spec, settings, "card"), strict=True)
        return {"apart": max(float(np.nanmax(np.abs(one - other))) for one, other in pairs)}
    except Exception as problem:
        return {"failed": f"{type(problem).__name__}: {problem}"}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    card = pretended(sys.argv[1])
    for spec in sys.argv[2:]:
        for kind, settings in (("toys", TOYS), *((("images", IMAGES),) if spec in ("fedavg", "feddiv") else ())):
            card.forget()
            found = compared(spec, settings)
            print(json.dumps({"spec": spec, "kind": kind, **found, "waits": card.waits()}), flush=True)


if __name__ == "__main__":
    main()
