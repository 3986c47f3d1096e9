"""Draw the pictures of the documentation again: `python tools/draw_docs.py`. Needs no data but `digits`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

import fedwinnow
from fedwinnow.scene.scene import Scene
from fedwinnow.study.figures.gallery import PICTURES as KINDS
from fedwinnow.study.figures.gallery import draw
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
# What the pictures of runs show: small runs, so that drawing them again takes two minutes.
RUNS: dict[str, Any] = {
    "data": "digits:train=600",
    "model": "linear",
    "clients": 12,
    "participation": 1.0,
    "rounds": 10,
    "epochs": 2,
    "noise": "uniform:share=0.5,low=0.3,high=0.7",
    "memorisation_every": 1,
}
FOUR = ["fedavg", "gce", "coteaching", "winnow"]
SEVERAL = [*FOUR, "sce", "feddiv", "fedcorr", "fedrn", "fednoro", "mixup", "selfie", "fedelc", "fedprox", "dividemix"]
# folder of runs -> their methods, and the pictures drawn from them
SHOWN: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "fedes": (["fedes:s1=3"], ("quality",)),
    "fedrn": ([f"fedrn:warm_up=2,neighbours={number}" for number in (1, 2, 4)], ("similarity", "sensitivity")),
    "fednoro": (["fednoro:warm_up=5,measure_every=1"], ("detection",)),
}


def main() -> None:
    """Draw all of them; the same scene gives the same picture."""
    for name, spec in PARTITIONS.items():
        draw_bubbles(Scene.make("digits", clients=20, partition=spec), PICTURES / f"partition-{name}.png")
    for name, spec in FLIPS.items():
        draw_transitions(Scene.make("digits", clients=20, noise=spec), PICTURES / f"transitions-{name}.png")
    for name, spec in RATES.items():
        draw_rates(Scene.make("digits", clients=20, noise=spec), PICTURES / f"rates-{name}.png")
    with tempfile.TemporaryDirectory() as place:
        draw_runs(Path(place))
    for path in PICTURES.glob("*.png"):
        if path.name.startswith(("partition-", "transitions-", "rates-", "figure-")):
            # A few colours are enough for a web page and make the file a quarter as large.
            Image.open(path).convert("RGB").quantize(192).save(path, optimize=True)


def draw_runs(place: Path) -> None:
    """A picture of every kind, each as wide as a column of a paper, and some of fourteen methods across the page."""
    for name, (methods, _) in {"several": (SEVERAL, ()), **SHOWN}.items():
        swept = fedwinnow.sweep(methods, seeds=3 if methods != SEVERAL else 2, out=place / name, **RUNS)
        assert not swept.failed, swept.failed
    folders = {kind: [place / name] for name, (_, kinds) in SHOWN.items() for kind in kinds}
    four = [path for method in FOUR for path in sorted((place / "several").glob(f"*/{method}"))]
    for kind in KINDS:
        options = {"option": "neighbours"} if kind == "sensitivity" else {}
        draw(kind, folders.get(kind, four), PICTURES / f"figure-{kind}.png", width="column", order=(), **options)
    for kind in ("curves", "estimates", "identification"):
        draw(kind, [place / "several"], PICTURES / f"figure-{kind}-many.png", width="page", order=("fedavg", "winnow"))


if __name__ == "__main__":
    main()
