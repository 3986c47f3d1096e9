"""Three post offices with tables of their own train one model over Flower; each is a process of its own here.

python examples/flower_three_sites/three_sites.py

Everything is made here and written below ./three-sites-example. On three machines the same commands run, one on each.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedwinnow.data.load import load

HERE = Path("three-sites-example")
SITES = ("north", "south", "east")
FIRST = 40  # labels of the order that are counted
ROWS, WRONG_AT, WRONG = 400, "east", 3  # digits per site, and the site at which three labels of ten are wrong
ROUNDS = 8

Processes = dict[str, subprocess.Popen[bytes]]


def write_tables(folder: Path) -> dict[str, str]:
    """own.csv of the coordinator and a table for each site; the right digit of every row, which no table tells."""
    data = load("digits").train
    pixels, digits = data.features.take(np.arange(len(data))).reshape(-1, 64), data.labels
    luck = np.random.RandomState(1)
    order = luck.permutation(len(digits))
    truth: dict[str, str] = {}
    for place, name in enumerate((*SITES, "own")):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            table = csv.writer(stream)
            table.writerow(["letter", *(f"pixel{number:02d}" for number in range(64)), "digit"])
            for number, row in enumerate(order[place * ROWS : (place + 1) * ROWS]):
                right, letter = int(digits[row]), f"{name}-{number:03d}"
                slip = int(luck.randint(1, 10)) if name == WRONG_AT and number % 10 < WRONG else 0
                table.writerow([letter, *pixels[row].astype(int), (right + slip) % 10])
                truth[letter] = str(right)
    return truth


def command(*words: str) -> list[str]:
    """A fedwinnow command, shown as one would type it."""
    print(f"$ fedwinnow {shlex.join(words)}", flush=True)
    return [sys.executable, "-m", "fedwinnow", *words]


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """Room for processes that end with this block, whatever ends it: the last line, an error or Ctrl-C."""
    started: Processes = {}
    try:
        yield started
    finally:
        for process in started.values():
            process.terminate()  # nothing happens to one that has ended
        for process in started.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start(started: Processes, name: str, *words: str) -> None:
    """Start a fedwinnow command; what it says to its operator goes to NAME.log."""
    with Path(f"{name}.log").open("wb") as log:
        started[name] = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=log)


def train() -> None:
    """Keys, the schema, one coordinator, three sites; they run until the last round is over."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    columns = "label=digit,id=letter"
    keys = ["certificates", "--host", "localhost", "--sites", *SITES, "--out", "certs"]
    schema = ["schema", "--data", f"csv:path=own.csv,{columns}", "--out", "schema.json"]
    for words in (keys, schema):
        subprocess.run(command(*words), check=True, stdout=subprocess.DEVNULL)
    columns += ",schema=schema.json"
    with processes() as started:
        training = ["--method", "winnow", "--model", "mlp:hidden=64", "--rounds", str(ROUNDS), "--epochs", "3"]
        training += ["--sites", str(len(SITES)), "--tls", "certs", "--port", port, "--out", "run"]
        start(started, "coordinator", "serve", "--data", f"csv:path=own.csv,{columns}", *training)
        for site in SITES:
            own = ["--tls", f"certs/{site}", "--data", f"csv:path={site}.csv,{columns}"]
            # Here all share one machine, which may be busy: nobody is given up after the usual minute of silence. And
            # nobody sits at a terminal to be asked: --yes takes part in what the default policy allows.
            start(started, site, "join", "--server", f"localhost:{port}", *own, "--heartbeat", "600", "--yes")
        print()
        follow(started)


def follow(started: Processes) -> None:
    """Print what the coordinator says and how good the model is, until all have ended; one that fails is an error."""
    said = rounds = 0
    running = True
    while running:
        running = any(process.poll() is None for process in started.values())  # before the look: it may be the last
        lines, said = new_lines(Path("coordinator.log"), said)
        for line in lines:
            print(f"coordinator: {line}", flush=True)
        lines, rounds = new_lines(Path("run/rounds.jsonl"), rounds)
        for row in map(json.loads, lines):
            print(f"round {row['round']}: accuracy {row['accuracy']:.1%}", flush=True)
        for name, process in started.items():
            if process.poll():
                log = Path(f"{name}.log").read_text(encoding="utf-8")
                raise SystemExit(f"{name} ended with exit code {process.returncode}; it said:\n{log}")
        time.sleep(0.2)


def new_lines(path: Path, seen: int) -> tuple[list[str], int]:
    """The whole lines that were added to a file since the last look, and how many it has now."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text.split("\n")[:-1]
    return lines[seen:], len(lines)


def show_what_left() -> None:
    """What went out of each site, by the ledger that the site itself keeps."""
    print("\nwhat left each site, by the ledger that it keeps itself:")
    for site in SITES:
        times: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for ledger in Path("sites", site).rglob("ledger.jsonl"):
            for line in ledger.read_text(encoding="utf-8").splitlines():
                for key, sent in json.loads(line)["sent"].items():
                    times[key] += 1
                    size[key] += sent["bytes"]
        left = ", ".join(f"{times[key]} x {key} ({size[key] / times[key]:,.0f} bytes each)" for key in times)
        print(f"  {site:<6} {left}")
    print("rows, labels and what a site thinks of them stayed where they are")


def show_what_was_found(truth: dict[str, str]) -> None:
    """The order of the labels: every site learns it of its own rows, and only this example knows the truth."""
    print(f"\nthe {FIRST} most suspicious labels, told to each site alone (sites/NAME/audit.csv and report.html):")
    for site in SITES:
        with Path("sites", site, "audit.csv").open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        wrong = {row["id"] for row in rows if row["given"] != truth[row["id"]]}
        first = {row["id"] for row in rows[:FIRST]}
        print(
            f"  {site:<6} {len(rows)} labels, {len(wrong):>3} of them wrong: "
            f"{len(first & wrong):>3} of the first {FIRST}"
        )


def main() -> None:
    """Tables, training, and a look at what came of it."""
    if importlib.util.find_spec("flwr") is None:
        raise SystemExit("this example needs Flower: in the checkout, pip install '.[flower]'")
    if HERE.exists():
        shutil.rmtree(HERE)  # of an earlier run: keys and finished runs are never overwritten
    HERE.mkdir()
    with contextlib.chdir(HERE):
        truth = write_tables(Path())
        print(
            f"{ROWS} handwritten digits at each of {', '.join(SITES)}; at {WRONG_AT} {WRONG} labels of 10 are wrong\n"
        )
        train()
        summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
        print(f"\nthe model reads {summary['last']['accuracy']:.1%} of the coordinator's digits right")
        show_what_left()
        show_what_was_found(truth)
    print(f"\nopen {HERE / 'run' / 'report.html'}, and {HERE / 'sites' / WRONG_AT / 'report.html'} for its labels")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; no process is left") from None
