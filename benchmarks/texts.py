"""Training a model of texts on the rows of a site's own tokens, against training its whole table of token vectors.

Both give the same model, bit for bit. Tokens are drawn as words are in a language: few often, most of them seldom.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.contest import ENOUGH_ROUNDS, player_of
from benchmarks.results import verdict
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.experiment.play import Player
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Task
from fedwinnow.mathematics import token_rows

AIMS = {2_000: 0.0, 20_000: 2.0, 100_000: 6.0}  # times, by the size of the vocabulary
CLIENTS, PARTICIPANTS, PER_CLIENT, LENGTH, CLASSES = 20, 10, 100, 64, 4
TURNS = 5


def run(*, smallest: bool = False) -> str:
    """Ratios by the size of the vocabulary, as Markdown."""
    lines = [
        f"Model `text` (width 64), {PARTICIPANTS} of {CLIENTS} clients with {PER_CLIENT} texts of up to "
        f"{LENGTH} words, 5 epochs, batch 32,",
        f"SGD with momentum 0.5; milliseconds of the processor, medians of {TURNS} turns. A visit is what a "
        "client does: load, train, reply.",
        "",
        "| words | rows trained | a visit | with the whole table | times | aim | | a round | whole tables | times |",
        "|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for words in list(AIMS)[:1] if smallest else AIMS:
        rows, visit, whole_visit, round_, whole_round = measure(words, 1 if smallest else TURNS)
        ratio, aim = whole_visit / visit, AIMS[words]
        shown = f"{aim:.0f} | {verdict(ratio, aim)}" if aim else "|"
        lines.append(
            f"| {words:,} | {rows:,} | {1e3 * visit:.1f} | {1e3 * whole_visit:.1f} | {ratio:.1f} | {shown} "
            f"| {1e3 * round_:.0f} | {1e3 * whole_round:.0f} | {whole_round / round_:.1f} |"
        )
    return "\n".join(lines)


def measure(words: int, turns: int) -> tuple[int, float, float, float, float]:
    """How many rows a site trains; the seconds of a visit and of a round, each both ways."""
    experiment = Experiment(
        data=texts(words),
        clients=CLIENTS,
        participation=PARTICIPANTS / CLIENTS,
        model="text",
        rounds=ENOUGH_ROUNDS,
        optimizer="sgd:lr=0.03,momentum=0.5",
    )
    visits: tuple[list[float], list[float]] = ([], [])
    rounds: tuple[list[float], list[float]] = ([], [])
    with player_of(experiment) as player:
        player.one_round(1)
        for _ in range(turns):
            replies = []
            for place, way in enumerate((own_rows, whole_table)):
                with way():
                    spent, reply = seconds(lambda: visit(player))
                    visits[place].append(spent)
                    replies.append(reply)
            for place, way in enumerate((own_rows, whole_table)):
                with way():
                    rounds[place].append(seconds(lambda: player.one_round(player.done + 1))[0])
            assert torch.equal(*replies), "the rows of the own tokens give another model"
        tokens = torch.from_numpy(player.stage.sites.features.take(player.stage.sites.holdings.rows[:PER_CLIENT]))
        return len(tokens.unique()), *(statistics.median(times) for times in (*visits, *rounds))


def visit(player: Player) -> torch.Tensor:
    """The model that the first client makes of the global one."""
    question = Task(0, "train", player.done, 0, dict(player.server.weights))
    [answer] = player.federation.backend.exchange([question])
    assert answer.error is None, answer.error
    return answer.reply["weights"]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """The processor's time for some work, and what it returns."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


@contextmanager
def own_rows() -> Iterator[None]:
    """As it is."""
    yield


@contextmanager
def whole_table() -> Iterator[None]:
    """As if no site's tokens were few enough."""
    usual = token_rows.rows_of
    token_rows.rows_of = lambda tokens, table: None
    try:
        yield
    finally:
        token_rows.rows_of = usual


def texts(words: int) -> Dataset:
    """Token ids whose frequencies follow Zipf's law, with some words that tell the class."""
    luck = np.random.default_rng(0)
    count = CLIENTS * PER_CLIENT + 200
    labels = np.arange(count) % CLASSES
    tokens = luck.zipf(1.2, (count, LENGTH)) % (words - 1) + 1
    telling = luck.random((count, LENGTH)) < 0.1
    tokens = np.where(telling, 1 + (labels[:, None] * 10 + luck.integers(0, 10, (count, LENGTH))) % (words - 1), tokens)
    tokens[np.arange(LENGTH) >= luck.integers(5, LENGTH + 1, count)[:, None]] = 0
    samples = Samples(Resident(tokens.astype(np.int32)), labels, np.arange(count))
    held = np.arange(200)
    names = tuple(map(str, range(CLASSES)))
    return Dataset(
        "texts", "tokens", names, samples.subset(np.arange(200, count)), samples.subset(held), vocabulary=words
    )
