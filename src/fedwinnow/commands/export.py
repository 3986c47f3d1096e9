"""`fedwinnow export`: the trained model of a run as a folder for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedwinnow.commands.common import Flags
from fedwinnow.commands.predict import Predict, RunPlace
from fedwinnow.errors import UsageError
from fedwinnow.setting import same, setting


@dataclass(frozen=True)
class Export(Flags):
    """Write the model of a finished run in a format of other programs, with its preprocessing and a model card.

    The written file is asked about made-up samples and compared with the run's model before the folder takes its
    place. No sample, label, id, site name or folder of this machine is in it.
    """

    folder: RunPlace = setting(None, "The folder of a finished run, for example runs/winnow-digits-0.")
    format: Literal["torch", "onnx", "safetensors"] = setting(
        "torch",
        "torch: model.pt2, which torch loads without fedwinnow; onnx: model.onnx; safetensors: the weights, for "
        "fedwinnow predict and for programs that build the model themselves.",
    )
    out: Path = setting(Path("model"), "The folder to write: a new or empty one, or an earlier export.")
    site: str | None = setting(None, "Whose model, where every site has its own.")
    encoder: str | None = same(Predict, "encoder")

    def run(self) -> int:
        """Export and say what was written."""
        if self.folder is None:
            raise UsageError("no run was given; needed: the folder of a finished run, such as runs/fedavg-digits-0.")
        from fedwinnow.experiment.report.templates import size
        from fedwinnow.experiment.trained.exporting.export_folder import export_model

        found = export_model(self.folder, self.out, self.format, site=self.site, encoder=self.encoder)
        self.emit(
            {
                "folder": str(found.folder),
                "file": str(found.file),
                "bytes": found.bytes,
                "largest_difference": found.difference,
                "allowed_difference": found.bound,
            }
        )
        console = self.console()
        console.print(f"{found.file}: {size(found.bytes)}", markup=False)
        if found.difference is not None:
            console.print(
                f"asked about made-up samples, its logits differ by at most {found.difference:.2g} from those of the "
                f"run's model (allowed: {found.bound:.2g})"
            )
        console.print(f"read {found.folder / 'README.md'}, the model card, before you pass the folder on", markup=False)
        return 0
