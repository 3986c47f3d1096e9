"""A small model on small clients, where overhead is everything: an MLP on digits, one client after the other."""

from __future__ import annotations

from benchmarks.contest import contest
from benchmarks.naive import Job

TURNS = 9
AIM = 2.5


def run() -> str:
    """Ratios at two batch sizes, as Markdown."""
    lines = [
        "MLP 64-128-10 on digits, 10 of 100 clients with 14 or 15 samples each, 5 epochs, backend `serial`, against",
        f"the naive way (`benchmarks/naive.py`); medians of {TURNS} rounds taken in turns. A whole round also scores",
        "the 360 test samples; ours then also writes its log and checkpoint.",
        "",
        f"| batch | our training, ms | naive, ms | ratio (aim: {AIM}) | whole round, ms | naive, ms | ratio |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    quietest = []
    for batch in (10, 50):
        job = Job("mlp", clients=100, participants=10, epochs=5, batch_size=batch, crop_and_flip=False)
        with contest(job, "digits") as race:
            for _ in range(TURNS):
                race.turn()
        (training, whole), (their_training, their_whole) = race.ours.medians(), race.theirs.medians()
        first, second = race.ratios()
        lines.append(
            f"| {batch} | {training * 1e3:.1f} | {their_training * 1e3:.1f} | {first:.2f} "
            f"| {whole * 1e3:.1f} | {their_whole * 1e3:.1f} | {second:.2f} |"
        )
        quietest.append(f"Batch {batch}. {race.quietest()}")
    return "\n".join([*lines, "", *quietest])
