"""A folder of images, some of them in the wrong folder: find them, and build the folder as it should be.

python examples/image_folder/shapes.py

Everything is made here and written below ./shapes-example. A folder per class is all that your own images need.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import fedwinnow
from fedwinnow.auditing.decisions import Decision, save_decision
from fedwinnow.auditing.looks import Survey, draw_looks, read_looks
from fedwinnow.cli import dispatch

HERE = Path("shapes-example")
SHAPES = ("bar", "disc", "ring")


def draw(shape: str, luck: np.random.RandomState) -> Image.Image:
    """A small picture of a shape, somewhere, in some grey."""
    picture = Image.new("L", (16, 16), int(luck.randint(0, 60)))
    pen, left, top, grey = ImageDraw.Draw(picture), luck.randint(1, 5), luck.randint(1, 5), int(luck.randint(150, 255))
    box = (left, top, left + 9, top + 9)
    if shape == "bar":
        pen.rectangle((left, top + 3, left + 10, top + 6), fill=grey)
    elif shape == "disc":
        pen.ellipse(box, fill=grey)
    else:
        pen.ellipse(box, outline=grey, width=2)
    return picture


def write_pictures(folder: Path, count: int = 360, wrong: float = 0.1) -> set[str]:
    """A folder per class; the names of those that are in the wrong one."""
    luck, misplaced = np.random.RandomState(5), set()
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        shape = SHAPES[number % 3]
        place = SHAPES[(number + 1) % 3] if luck.rand() < wrong else shape
        draw(shape, luck).save(folder / place / f"{number:03d}.png")
        if place != shape:
            misplaced.add(f"{number:03d}.png")
    return misplaced


def look(folder: Path, misplaced: set[str]) -> None:
    """Thirty looks, drawn by lot; in a terminal: fedwinnow review FOLDER --anchor 30.

    Here somebody who knows the truth answers; with your own data that is you.
    """
    for _ in range(2):  # fifteen, and then fifteen more where the first ones left it open
        survey = Survey(folder)
        draw_looks(survey, 30)
        for site in survey.sites:
            for sample in read_looks(site.folder):
                given = site.rows[site.by_id[sample]]["given"]
                wrong = Path(sample).name in misplaced
                right = SHAPES[SHAPES.index(given) - 1] if wrong else given
                answer = Decision.now(sample, "anna", "other" if wrong else "keep", right)
                save_decision(site.folder, sample, "anna", answer)


def main() -> None:
    """Audit, look at thirty pictures, take the suggestions, and count which were right: only an example can."""
    pictures, corrected = HERE / "pictures", HERE / "corrected"
    misplaced = write_pictures(pictures)
    # The folder does not say who holds what, so for a trial the pictures are dealt out to three sites.
    found = fedwinnow.audit(data=pictures, clients=3, epochs=3, optimizer="adam:lr=0.002", out=HERE / "audit")
    print(found)
    print(found.facts["claims"]["reason"])
    look(HERE / "audit", misplaced)
    dispatch(["audit", "--update", str(HERE / "audit")])
    # In a terminal: fedwinnow apply shapes-example/audit --accept-above 0.7 --out shapes-example/corrected --link hard
    dispatch(["apply", str(HERE / "audit"), "--accept-above", "0.7", "--out", str(corrected), "--link", "hard"])
    before = {path.name: path.parent.name for path in pictures.glob("*/*.png")}
    after = {path.name: path.parent.name for path in corrected.glob("*/*.png")}
    moved = {name for name in before if before[name] != after[name]}
    print(
        f"{len(misplaced)} pictures were misplaced; {len(moved)} were moved, {len(moved & misplaced)} of them rightly"
    )


if __name__ == "__main__":
    main()
