"""Ways to damage the files of a folder, always in the same order, and the commands that read them."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
from fedwinnow.cli import main
from fedwinnow.experiment.report.run_report import report_of

OLD = Path(__file__).parent / "old"
STRANGE: tuple[Any, ...] = (None, True, -1, 1e300, "x", "", [], {}, [[]], {"x": None}, "\ud800", 10**30)
RUN = (
    "run --quiet --device cpu --data digits:train=150 --clients 4 --model mlp:hidden=4 --participation 0.5 "
    "--noise constant:rate=0.3 --resume "
)
FINISHED = f"{RUN} --epochs 1 --method fedfixer --out run"
UNFINISHED = f"{RUN} --epochs 60 --rounds 8 --method fedes:preset=sensible --out unfinished"
SWEEP = (
    "sweep --quiet --device cpu --data digits:train=150 --clients 4 --model mlp:hidden=4 --epochs 1 "
    "--participation 0.5 --methods fedavg --noise constant:rate=0.3 --seeds 0 1 --rounds 2 --out sweep"
)


def spoken(words: str) -> tuple[int, str]:
    """The exit code of a command, and what it said on stderr; an exception that gets out is an error of ours."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(words.split())
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    raise AssertionError("main always ends the process")


def review(folder: str) -> tuple[int, str]:
    """What `review` does until somebody opens the page, and what the page then asks for."""
    from fedwinnow.errors import FedwinnowError

    try:
        queue = ReviewQueue(Path(folder), "anna")
        json.dumps(queue.state())
        for name in list(queue.rows)[:3]:
            queue.sample(name)
    except FedwinnowError as problem:
        return problem.exit_code, f"error: {problem}"
    return 0, ""


def report(folder: str) -> tuple[int, str]:
    """The report of a run, made anew from Python."""
    from fedwinnow.errors import FedwinnowError

    try:
        report_of(folder)
    except FedwinnowError as problem:
        return problem.exit_code, f"error: {problem}"
    return 0, ""


def damaged(content: bytes, luck: random.Random) -> Iterator[bytes]:
    """The content with a bit flipped, cut short, emptied, with bytes that are no UTF-8, and doubled."""
    for _ in range(2):
        place = luck.randrange(len(content))
        yield content[:place] + bytes([content[place] ^ (1 << luck.randrange(8))]) + content[place + 1 :]
    yield content[: luck.randrange(len(content))]
    yield b""
    place = luck.randrange(len(content))
    yield content[:place] + b"\xff\xfe\x80" + content[place:]
    yield content + content


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value within a value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places_in(one, (*path, key))


def with_other(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """A copy of a value with another one at a place; without it where the other is `...`."""
    if not path:
        return other
    made = dict(value) if isinstance(value, dict) else list(value)
    if other is ... and len(path) == 1:
        del made[path[0]]
    else:
        made[path[0]] = with_other(value[path[0]], path[1:], other)
    return made


def retyped(text: str, luck: random.Random, times: int) -> Iterator[str]:
    """JSON with values of another type, or without them, at some places."""
    value = json.loads(text)
    ways = list(places_in(value))
    for _ in range(times):
        path = luck.choice(ways[:40] if luck.random() < 0.5 else ways)
        yield json.dumps(with_other(value, path, luck.choice((*STRANGE, ...)) if path else luck.choice(STRANGE)))


def variants(path: Path, luck: random.Random, times: int) -> Iterator[bytes]:
    """Damaged versions of one file."""
    content = path.read_bytes()
    if path.suffix == ".json":
        yield from (text.encode() for text in retyped(content.decode(), luck, times))
    if path.suffix == ".jsonl":
        lines = content.decode().splitlines()
        place = luck.randrange(len(lines))
        for line in retyped(lines[place], luck, times):
            yield "\n".join([*lines[:place], line, *lines[place + 1 :], ""]).encode()
    yield from damaged(content, luck)


@contextlib.contextmanager
def restored(folder: Path) -> Iterator[None]:
    """Put a folder back as it was, whatever a command did in it."""
    kept = folder.with_name(f"{folder.name}.kept")
    shutil.copytree(folder, kept)
    try:
        yield
    finally:
        shutil.rmtree(folder)
        kept.rename(folder)


def tried(folder: Path, name: str, content: bytes, commands: list[Callable[[], tuple[int, str]]]) -> list[str]:
    """What is wrong with how commands take a damaged file: an exception, a traceback, an unknown exit code."""
    found = []
    for command in commands:
        with restored(folder):
            (folder / name).write_bytes(content)
            try:
                code, said = command()
            except Exception as problem:
                import traceback

                place = traceback.extract_tb(problem.__traceback__)[-1]
                found.append(f"{name}: {type(problem).__name__}: {problem} at {place.filename}:{place.lineno}")
                continue
            if code not in (0, 2, 3, 4) or "Traceback" in said:
                found.append(f"{name}: exit {code}: {said[-600:]}")
    return found
