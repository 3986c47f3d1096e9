"""A small model on small clients, where overhead is everything: an MLP on digits, one client after the other."""

from __future__ import annotations

from benchmarks.contest import contest
from benchmarks.naive import Job
from benchmarks.results import verdict

TURNS = 9
AIM = 2.5
PROFILE = """Where our time went when it was profiled: of 370 to 460 microseconds per step at batch 10, more than half
were torch's forward and backward pass themselves, 50 torch's Python around them, 40 drawing and gathering samples, 10
the optimiser; a client cost 300 more."""


def run(*, smallest: bool = False) -> str:
    """Ratios at two batch sizes, as Markdown."""
    turns = 1 if smallest else TURNS
    lines = [
        "MLP 64-128-10 on digits, 10 of 100 clients with 14 or 15 samples each, 5 epochs: ours with the",
        "backend `serial`, one thread; the rival (`benchmarks/naive.py`) with torch's default. Wall time,",
        f"medians of {turns} rounds taken in turns.",
        "A whole round also scores the 360 test samples; ours then also writes its log and checkpoint.",
        "",
        f"| batch | our training, ms | rival, ms | ratio (aim: {AIM}) | | whole round, ms | rival, ms | ratio |",
        "|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    quietest = []
    for batch in (10,) if smallest else (10, 50):
        job = Job("mlp", clients=100, participants=10, epochs=5, batch_size=batch, crop_and_flip=False)
        with contest(job, "digits") as race:
            for _ in range(turns):
                race.turn()
        (training, whole), (their_training, their_whole) = race.ours.medians(), race.theirs.medians()
        first, second = race.ratios()
        lines.append(
            f"| {batch} | {training * 1e3:.1f} | {their_training * 1e3:.1f} | {first:.2f} | {verdict(first, AIM)} "
            f"| {whole * 1e3:.1f} | {their_whole * 1e3:.1f} | {second:.2f} |"
        )
        quietest.append(f"Batch {batch}. {race.quietest()}")
    return "\n".join([*lines, "", *quietest, "", PROFILE])
