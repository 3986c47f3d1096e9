"""Draw the pictures of the documentation again: `python tools/draw_docs.py`. Needs no data but `digits`."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from fedwinnow.scene.scene import Scene
from fedwinnow.study.figures.scene_pictures import draw_bubbles, draw_rates, draw_transitions

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"

PARTITIONS = {
    "iid": "iid",
    "classes": "classes:per_client=3",
    "quantity": "quantity:alpha=1",
    "shards": "shards:per_client=2",
    "dirichlet": "dirichlet:alpha=0.3",
    "bernoulli_dirichlet": "bernoulli_dirichlet:p=0.3,alpha=10",
}
FLIPS = {
    "symmetric": "constant:rate=0.4,flip=symmetric",
    "pair": "constant:rate=0.4,flip=pair",
    "asymmetric": "constant:rate=0.4,flip=asymmetric",
    "instance": "constant:rate=0.4,flip=instance",
}
RATES = {
    "uniform": "uniform:share=0.6,low=0.5,high=1",
    "linear": "linear:low=0,high=0.4",
    "gaussian": "gaussian:mean=0.3,std=0.15",
    "fedcorr": "fedcorr:rho=0.6,tau=0.5",
}


def main() -> None:
    """Draw all of them; the same scene gives the same picture."""
    for name, spec in PARTITIONS.items():
        draw_bubbles(Scene.make("digits", clients=20, partition=spec), PICTURES / f"partition-{name}.png")
    for name, spec in FLIPS.items():
        draw_transitions(Scene.make("digits", clients=20, noise=spec), PICTURES / f"transitions-{name}.png")
    for name, spec in RATES.items():
        draw_rates(Scene.make("digits", clients=20, noise=spec), PICTURES / f"rates-{name}.png")
    for path in PICTURES.glob("*.png"):
        # A few colours are enough for a web page and make the file a quarter as large.
        Image.open(path).convert("RGB").quantize(192).save(path, optimize=True)


if __name__ == "__main__":
    main()
