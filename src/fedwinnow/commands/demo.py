"""`fedwinnow demo`: the main job on embedded data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedwinnow.commands.common import Flags


@dataclass
class Demo(Flags):
    """Ten sites share handwritten digits; half of them mislabel. See who holds what and which labels are wrong."""

    out: Path = Path("demo")
    """The folder for the scene and its pictures."""

    def run(self) -> int:
        """Make the scene, show it, draw it."""
        from fedwinnow.figures.scene import draw_scene
        from fedwinnow.scene.files import describe_scene
        from fedwinnow.scene.scene import Scene
        from fedwinnow.scene.show import show_scene

        scene = Scene.make(
            "digits", clients=10, partition="dirichlet:alpha=1", noise="uniform:share=0.5,low=0.4,high=0.6", seed=0
        )
        scene.save(self.out)
        pictures = draw_scene(scene, self.out)
        self.emit({"folder": str(self.out), "pictures": [str(path) for path in pictures], **describe_scene(scene)})
        console = self.console()
        show_scene(scene, console)
        console.print("\nLook at the pictures:")
        for path in pictures:
            console.print(f"  {path}", markup=False)
        return 0
