"""`fedwinnow encode`: the features of a data set, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError
from fedwinnow.setting import setting


@dataclass(frozen=True)
class Encode(Flags):
    """Encode a data set once and write its features to a folder: x.npy, y.npy, id.npy, site.npy and so on.

    The folder is data by itself: --data features:path=FOLDER --encoder rows. What a site encodes stays on the site.
    """

    data: str = setting("", "The data: a name with options, or a path to a folder of images or a file.")
    encoder: str = setting("", "The encoder (see `fedwinnow encoders`).")
    out: Path = setting(Path("encoded"), "The folder for the features.")

    def run(self) -> int:
        """Load, encode and write, with a progress bar on a terminal."""
        from fedwinnow.commands.progress import Bar
        from fedwinnow.data.load import load
        from fedwinnow.encoders.feature_folder import write_features

        if not self.data or not self.encoder:
            missing = "--encoder" if self.data else "--data"
            raise UsageError(f"{missing} is missing; for example: fedwinnow encode --data photos --encoder lite.")
        console = self.console()
        try:
            with Bar(console):
                about = write_features(load(self.data), self.encoder, self.out)
        except KeyboardInterrupt:
            console.print("\ninterrupted; the same command goes on where it was", markup=False)
            return 130
        self.emit({"folder": str(self.out), **about})
        text = f"{about['samples']} samples of {about['width']} numbers in {self.out}"
        console.print(f"{text}; use them with --data features:path={self.out} --encoder rows", markup=False)
        return 0
