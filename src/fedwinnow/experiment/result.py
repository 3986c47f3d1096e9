"""The result of a run in Python: an object that reads the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwinnow.errors import UsageError, unknown
from fedwinnow.experiment.gain_table import Gain, read_gain
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.randomness import Floats
from fedwinnow.scene.scene import Scene

if TYPE_CHECKING:
    import pandas


class Result:
    """A finished (or broken) run; everything is read from its folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = RunFolder.existing(self.folder)

    def __repr__(self) -> str:
        last = self.summary.get("last10") or {}
        accuracy = last.get("accuracy")
        shown = "unknown" if accuracy is None else f"{100 * accuracy:.2f} %"
        return f"Result({str(self.folder)!r}: {self.summary.get('status')}, last-10 accuracy {shown})"

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return self._files.read_json("summary.json") or {}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One dictionary per round."""
        return self._files.rounds()

    @property
    def scene(self) -> Scene:
        """The scene it was played on."""
        return Scene.load(self.folder)

    @property
    def gain(self) -> Gain:
        """What the federation gives to each site, which `fedwinnow gain` has measured."""
        found = read_gain(self._files)
        if found is None:
            raise UsageError(f"{self.folder}: the gain was not measured yet. Do it with: fedwinnow gain {self.folder}")
        return found

    def curve(self, name: str = "accuracy") -> tuple[Floats, Floats]:
        """Round numbers and values of one column, of the rounds in which it was measured."""
        rows = [row for row in self.rounds if isinstance(row.get(name), int | float)]
        if not rows:
            known = {key for row in self.rounds for key, value in row.items() if isinstance(value, int | float)}
            raise unknown("curve", name, known)
        return np.array([row["round"] for row in rows], float), np.array([row[name] for row in rows], float)

    def frame(self) -> pandas.DataFrame:
        """The rounds as a pandas data frame."""
        try:
            import pandas
        except ImportError:
            raise UsageError("a data frame needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rounds)
