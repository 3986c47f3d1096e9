"""What a run thinks of every training label, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError, UsageError
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.scene import Scene

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Verdicts:
    """One entry per training sample of every site; NaN in `p_wrong` where a site gave no verdict."""

    scene: Scene
    site: NDArray[np.str_]
    row: Integers  # the place in the training part of the data, from 0
    given: NDArray[np.str_]  # classes by name
    suggested: NDArray[np.str_]
    p_wrong: Floats  # 0 to 1: how much speaks against the given label; not calibrated

    def __len__(self) -> int:
        return len(self.row)

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of the samples; the training data must be there."""
        return self.scene.dataset.train.ids[self.row]

    def frame(self) -> pandas.DataFrame:
        """As a pandas data frame."""
        try:
            import pandas
        except ImportError:
            raise UsageError("a data frame needs pandas: pip install pandas") from None
        names = ("site", "row", "given", "suggested", "p_wrong")
        return pandas.DataFrame({name: getattr(self, name) for name in names})


def verdicts_in(folder: Path, scene: Scene) -> Verdicts:
    """The verdicts in a run folder."""
    path = folder / "verdicts.npz"
    if not path.exists():
        raise DataError(f"{folder}: it has no verdicts.npz; they are written at the end of a run. Continue it first.")
    arrays = read_npz(path, ("p_wrong", "suggested"))
    count = len(scene.given)
    if any(name not in arrays or arrays[name].shape != (count,) for name in ("p_wrong", "suggested")):
        raise DataError(f"{path}: not the verdicts on the {count} labels of this run. Restore the file.")
    names = np.array(scene.data.class_names)
    return Verdicts(
        scene=scene,
        site=np.array(scene.site_names)[scene.holdings.client],
        row=scene.holdings.rows,
        given=names[scene.given],
        suggested=names[arrays["suggested"]],
        p_wrong=arrays["p_wrong"],
    )
