"""`fedwinnow predict`: what the model of a run says of new samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedwinnow.all_settings import PlaceSettings
from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError
from fedwinnow.setting import same, setting

RunPlace = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
CLASSES_SHOWN = 12


@dataclass(frozen=True)
class Predict(Flags):
    """Ask the model of a finished run about new samples, with or without labels.

    How a table becomes numbers, the size of images, the classes and the normalisation are those of the run; its
    training data is not needed.
    """

    folder: RunPlace = setting(
        None,
        "The folder of a finished run, for example runs/winnow-digits-0, or an export with --format safetensors.",
    )
    data: str | None = setting(
        None,
        "The samples: a table, a folder of images or one image, an .npz file with x, or a source with options. A table "
        "needs the columns of the training, the label not among them.",
    )
    out: Path = setting(Path("predictions.csv"), "The file to write: id, class, probability of each class.")
    calibrated: bool = setting(
        False, "Divide the scores by the temperature that `fedwinnow evaluate --keep-temperature` has stored."
    )
    site: str | None = setting(None, "Whose model, where every site has its own.")
    encoder: str | None = setting(
        None,
        "The run's encoder where its files lie elsewhere on this machine: transformers:path=FOLDER. They must have the "
        "same content; other options stay as they were.",
    )
    device: str | None = same(PlaceSettings, "device")

    def run(self) -> int:
        """Predict and write."""
        if self.folder is None:
            raise UsageError("no run was given; needed: the folder of a finished run, such as runs/fedavg-digits-0.")
        if self.data is None:
            raise UsageError("no samples were given; needed: --data, for example --data new.csv.")
        from fedwinnow.data.load import load_new
        from fedwinnow.experiment.trained.load_trained import load_trained
        from fedwinnow.experiment.trained.predictions import predict
        from fedwinnow.experiment.trained.temperature import kept_temperature
        from fedwinnow.terminal import Grid

        if self.out.suffix != ".csv":  # a slip must not overwrite the data
            raise UsageError(f"--out {self.out} was given; allowed: a file that ends in .csv.")
        if self.out.exists() and Path(self.data).exists() and self.out.samefile(self.data):
            raise UsageError(f"--out {self.out} is the file of --data; give another one.")
        model = load_trained(self.folder, site=self.site, device=self.device, encoder=self.encoder)
        temperature = kept_temperature(model) if self.calibrated else 1.0
        samples = load_new(self.data, model.form)
        found = predict(model, samples, temperature)
        found.write(self.out)
        counts = found.counts()
        self.emit({"file": str(self.out), "samples": len(samples), "classes": counts, "temperature": temperature})
        console = self.console()
        shown = sorted(counts.items(), key=lambda item: -item[1])[:CLASSES_SHOWN]
        Grid("tn", ("class", "samples"), [(escaped(name), str(count)) for name, count in shown]).show(console)
        if len(counts) > CLASSES_SHOWN:
            console.print(f"... and {len(counts) - CLASSES_SHOWN} more classes")
        whose = f" of the site {self.site}" if self.site else ""
        console.print(
            f"{len(samples)} samples, asked of the model{whose} in {self.folder}; written to {self.out}", markup=False
        )
        return 0
