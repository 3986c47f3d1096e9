"""A folder with what people have lying around: good files, broken files, old folders, an audit, a run, a scene."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwinnow.cli import main

HEAD = "diagnosis,hospital,age\n"
ROWS = [f"{'ill' if row % 3 else 'well'},{'north' if row % 2 else 'south'},{20 + row}\n" for row in range(40)]
TEXTS = {
    "good.csv": HEAD + "".join(ROWS),
    "empty.csv": "",
    "header.csv": HEAD,
    "one.csv": HEAD + "".join(row.replace("well", "ill") for row in ROWS),
    "floats.csv": "diagnosis,age\n" + "".join(f"{row * 0.37 + 0.1},{row}\n" for row in range(40)),
    "ragged.csv": "diagnosis,age\nill,3\nwell,4,5\n",
    "gap.csv": "diagnosis,age\nill,3\n,4\n",
    "twice.csv": "id,diagnosis,age\na,ill,3\na,well,4\n",
    "homeless.csv": HEAD + "ill,north,3\nwell,,4\n",
    "notes.txt": "hello",
    "bad.toml": "= 3",
    "key.toml": "clientz = 3\n",
    "value.toml": "clients = 'many'\n",
    "part.toml": "[partition]\nalpha = 1\n",
    "sweep-key.toml": "methodz = ['fedavg']\n",
    "sweep-scene.toml": "methods = ['fedavg']\n[[scenes]]\nname = 'a'\npartitoin = 'iid'\n",
    "sweep-value.toml": "[[scenes]]\nclients = 'many'\n",
    "sweep-rate.toml": "[[scenes]]\nnoise = { kind = 'constant', rate = 2 }\n",
    "sweep-optimizer.toml": "[[rows]]\noptimizer = 'sdg'\n",
    "sweep-seeds.toml": "seeds = ['a']\n",
    "sweep-twice.toml": "methods = ['fedavg', 'fedavg']\n",
    "no-python.py": "def (:",
    "no-method.py": "x = 1\n",
    "needs-more.py": "import there_is_no_such_module\n",
    "square.csv": "1,0\n0,1\n",
    "another-config/config.toml": "what = 1\nseed = 7\n[method]\nkind = 'fedavg'\n",
    "other-version/config.toml": "what = 1\n[method]\nkind = 'fedavg'\n",
    "other-version/summary.json": "{",
    "mine/letter.txt": "dear",
}
SMALL = "--data digits:train=60 --model linear --rounds 1 --epochs 1 --quiet"
COMMANDS = (
    f"run {SMALL} --clients 3 --out run",
    "scene make --data digits:train=60 --clients 4 --noise constant:rate=0.3 --out scene --quiet",
    "audit --data csv:path=good.csv,label=diagnosis --site hospital --rounds 1 --epochs 1 --model linear "
    "--threshold 0.5 --out audited --quiet",
)


def write_material(folder: Path) -> None:
    """All of it, in the current folder."""
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin.csv").write_bytes("diagnosis,age\nkränk,3\n".encode("latin-1"))
    (folder / "bare").mkdir()
    luck = np.random.RandomState(0)
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(4):
            picture = luck.randint(0, 255, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(picture).save(folder / "photos" / kind / f"{number}.png")
    shutil.copytree(folder / "photos", folder / "photos-broken")
    (folder / "photos-broken" / "cat" / "3.png").write_text("no image")
    shutil.copytree(folder / "photos" / "cat", folder / "photos-one" / "cat")
    x, y = np.zeros((4, 3)), np.arange(4) % 2
    np.savez(folder / "objects.npz", x=x, y=np.array([{"a": 1}, 2, 3, 4], dtype=object))
    np.savez(folder / "without.npz", x=x)
    np.savez(folder / "lengths.npz", x=x, y=np.arange(5))
    np.savez(folder / "nan.npz", x=np.full((4, 3), np.nan), y=y)
    np.savez(folder / "shares.npz", x=x, y=np.array([0.5, 1, 2, 3]))
    (folder / "fake.npz").write_text("no archive")
    for line in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code == 0, line
