"""`fedwinnow scene make|show|draw|export|import`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedwinnow.all_settings import SceneSettings, SiteSettings
from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError
from fedwinnow.flags import as_flags
from fedwinnow.setting import same, setting

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@as_flags("scene")
@dataclass(frozen=True)
class SceneMake(SceneSettings, Flags):
    """Make a scene: deal the data out to clients, make labels wrong, and count the wrong labels.

    Every part is written name:key=value,key=value; `fedwinnow data`, `partitions`, `noises` and `flips` list them.
    """

    seed: int = same(SiteSettings, "seed")
    out: Path = setting(Path("scenes/scene"), "The folder for scene.npz, scene.csv and scene.json.")
    config: Path | None = setting(None, "A TOML file with the same names; flags win over it.")

    def run(self) -> int:
        """Make, save and show."""
        from fedwinnow.scene.scene import Scene, describe_scene
        from fedwinnow.scene.scene_in_terminal import show_scene

        scene = Scene.make(
            self.data,
            clients=self.clients,
            partition=self.partition,
            noise=self.noise,
            seed=self.seed,
            test=self.test,
        )
        scene.save(self.out)
        self.emit({"folder": str(self.out), **describe_scene(scene)})
        console = self.console()
        show_scene(scene, console)
        place = escaped(self.out)
        console.print(f"\nwritten to [bold]{place}[/]; pictures: fedwinnow scene draw {place}")
        return 0


@dataclass(frozen=True)
class SceneShow(Flags):
    """Show a scene in the terminal: the class-by-client map, and nominal and realised rates."""

    folder: Folder = Path("scenes/scene")
    """The folder of the scene."""
    limit: int = 40
    """The most clients to show."""

    def run(self) -> int:
        """Load and show."""
        from fedwinnow.scene.scene import Scene, describe_scene
        from fedwinnow.scene.scene_in_terminal import show_scene

        if self.limit < 0:
            raise UsageError(f"--limit {self.limit} was given; allowed: 0 or more.")
        scene = Scene.load(self.folder)
        self.emit(describe_scene(scene))
        show_scene(scene, self.console(), limit=self.limit)
        return 0


@dataclass(frozen=True)
class SceneDraw(Flags):
    """Draw a scene: the bubble plot of the papers, the transition heat map, the bars of the rates."""

    folder: Folder = Path("scenes/scene")
    """The folder of the scene."""
    format: Literal["png", "svg"] = "png"
    """The kind of picture."""
    out: Path | None = None
    """The folder for the pictures; none: the folder of the scene."""

    def run(self) -> int:
        """Load and draw."""
        from fedwinnow.scene.scene import Scene
        from fedwinnow.study.figures.scene_pictures import draw_scene

        pictures = draw_scene(Scene.load(self.folder), self.out or self.folder, self.format)
        self.emit([str(path) for path in pictures])
        for path in pictures:
            self.console().print(str(path), markup=False)
        return 0


@dataclass(frozen=True)
class SceneExport(Flags):
    """Write the arrays `client`, `given` and, if known, `true`, aligned with the training rows (-1: no client)."""

    folder: Folder = Path("scenes/scene")
    """The folder of the scene."""
    out: Path = Path("scene-export.npz")
    """A .npz or a .csv file."""

    def run(self) -> int:
        """Load and export."""
        from fedwinnow.scene.scene import Scene, export_scene

        if self.out.suffix not in (".npz", ".csv"):
            raise UsageError(f"--out {self.out} was given; allowed: a file that ends in .npz or .csv.")
        export_scene(Scene.load(self.folder), self.out)
        self.emit({"file": str(self.out)})
        self.console().print(str(self.out), markup=False)
        return 0


@dataclass(frozen=True)
class SceneImport(Flags):
    """Import a scene that another program made."""

    data: str = same(SceneSettings, "data", "The data it belongs to.")
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An .npz file with arrays `client` (-1: nobody) and `given`, aligned with the training rows; `true` if known."""
    seed: int = same(
        SiteSettings, "seed", "The seed with which the test part was split off, where the data has none of its own."
    )
    test: float = same(SceneSettings, "test", "The share that was split off.")
    out: Path = Path("scenes/scene")
    """The folder for scene.npz, scene.csv and scene.json."""

    def run(self) -> int:
        """Read, check, save and show."""
        from fedwinnow.data.load import load, with_test_part
        from fedwinnow.scene.scene import describe_scene, import_scene
        from fedwinnow.scene.scene_in_terminal import show_scene

        if self.source is None:
            raise UsageError("--from is missing; give the .npz file with the arrays `client` and `given`.")
        loaded = load(self.data)
        dataset = with_test_part(loaded, self.test, self.seed)
        share = self.test if loaded.test is None else 0.0
        scene = import_scene(dataset, self.source, seed=self.seed, test_share=share)
        scene.save(self.out)
        self.emit({"folder": str(self.out), **describe_scene(scene)})
        show_scene(scene, self.console())
        return 0
