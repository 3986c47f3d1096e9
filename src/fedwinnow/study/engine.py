"""Where the runs of a sweep are played: in processes of this machine, on a Dask cluster or on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedwinnow.device import VARIABLE, cards_present, choose_device, usable_cores
from fedwinnow.errors import RunError, UsageError, missing_extra, unknown
from fedwinnow.options import parse_spec, to_int

ENGINES = {"loky": set[str](), "dask": {"address"}, "ray": {"address"}}
Call = Callable[[Any], Any]
Results = Iterator[tuple[int, Any]]  # place and result
PATIENCE = 2  # how often the work of a dead process is repeated
SECONDS = 20  # how long to wait for an answer of a cluster
KILLED = (
    "processes of the sweep were killed several times, perhaps for lack of memory. "
    "Use fewer --jobs; the same command continues."
)


@dataclass(frozen=True)
class Engine:
    """Where runs are played: the engine's name, its options, and how many runs at a time."""

    name: str
    options: dict[str, str]
    jobs: int
    backend: str = "serial"  # of each run
    device: str | None = None  # that was asked for

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError(f"--jobs {self.jobs} was given; allowed: 1 or more.")
        if self.name not in ENGINES:
            raise unknown("engine", self.name, ENGINES)
        for key in self.options:
            if key not in ENGINES[self.name]:
                raise unknown(f"option of engine '{self.name}':", key, ENGINES[self.name])
        if self.jobs > 1 and self.has_workers:
            raise UsageError(
                f"--jobs {self.jobs} was given with --engine {self.name}:address={self.options['address']}. The sweep "
                "uses all workers of that cluster. Leave --jobs at 1, and start as many workers as you need."
            )

    @property
    def several(self) -> bool:
        """Whether several runs go at a time."""
        return self.jobs > 1 or self.has_workers

    @property
    def has_workers(self) -> bool:
        """Whether the engine is a running cluster, whose workers decide how many runs go at a time."""
        return "address" in self.options

    @property
    def pace(self) -> str:
        """How many runs go at a time, in words."""
        return "as many at a time as there are workers" if self.has_workers else f"{self.jobs} at a time"

    def map(self, work: Call, items: Sequence[Any]) -> Results:
        """Do the work on every item; yields place and result as they come."""
        if items:
            more = {"device": self.device} if self.name == "ray" else {}
            yield from CARRIERS[self.name](work, items, self.jobs, **self.options, **more)


def make_engine(spec: str, jobs: int | Literal["auto"], device: str | None = None, backend: str = "serial") -> Engine:
    """An engine from `loky`, `dask:address=tcp://host:8786` or `ray:address=auto`, for runs with this backend.

    jobs="auto" means one run for each GPU or each core of this machine; a running cluster has its own workers. Where
    several runs go at a time, each stays serial with backend="auto", because the cores are used already.
    """
    name, options = parse_spec(spec)
    if jobs == "auto":
        jobs = 1 if "address" in options else jobs_for(device, backend)
    engine = Engine(name, dict(options), jobs, backend, device)
    return replace(engine, backend="serial") if backend == "auto" and engine.several else engine


def jobs_for(device: str | None, backend: str) -> int:
    """How many runs at a time use this machine: one for each GPU, else the cores shared by the workers of each run."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return 1 if chosen.index is not None or backend != "serial" else max(1, len(cards_present()))
    if chosen.type != "cpu":
        return 1
    name, values = parse_spec(backend)
    if name != "processes":
        return usable_cores()
    workers = to_int("--backend processes: workers", values["workers"]) if "workers" in values else usable_cores()
    return max(1, usable_cores() // max(1, workers))


def numbered(work: Call, place: int, item: Any) -> tuple[int, Any]:
    """The result of work with the place of its item."""
    return place, work(item)


def through_joblib(work: Call, items: Iterable[tuple[int, Any]], workers: int) -> Results:
    """One joblib call."""
    from joblib import Parallel, delayed

    calls = (delayed(numbered)(work, place, item) for place, item in items)
    settings = {"batch_size": 1, "pre_dispatch": "all", "return_as": "generator_unordered"}
    yield from Parallel(n_jobs=workers, **settings)(calls)


def on_this_machine(work: Call, items: Sequence[Any], jobs: int) -> Results:
    """Processes of this machine; when one dies, the unfinished work is repeated."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(enumerate(items))
    for attempt in range(PATIENCE + 1):
        try:
            for place, result in through_joblib(work, list(left.items()), jobs):
                del left[place]
                yield place, result
            return
        except TerminatedWorkerError:
            if attempt == PATIENCE:
                raise RunError(KILLED) from None


def on_dask(work: Call, items: Sequence[Any], jobs: int, address: str | None = None) -> Results:
    """A Dask cluster, which repeats the work of a lost worker by itself."""
    from joblib import parallel_config

    with dask_client(address, jobs), parallel_config(backend="dask"):
        yield from through_joblib(work, enumerate(items), -1)


@contextlib.contextmanager
def dask_client(address: str | None, workers: int) -> Iterator[None]:
    """A connection to a Dask scheduler; without an address, to a new cluster on this machine."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise missing_extra("dask", "--engine dask") from None
    if address is not None:
        try:
            with Client(address, timeout=SECONDS, set_as_default=True):
                yield
        except (OSError, TimeoutError) as problem:
            raise UsageError(f"--engine dask:address={address}: no scheduler answers there ({problem}).") from None
        return
    # One thread per worker, because every run needs its own process.
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local, Client(local):
        yield


def on_ray(
    work: Call, items: Sequence[Any], jobs: int, address: str | None = None, device: str | None = None
) -> Results:
    """A Ray cluster. Not through joblib, which would return no result before the last and fail when one worker dies."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would send usage statistics to its makers
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "--engine ray") from None
    here = {} if address else {"num_cpus": jobs, "include_dashboard": False}
    try:
        check_listening(address or "")
        ray.init(address=address, logging_level="error", log_to_driver=False, **here)
    except (OSError, ValueError) as problem:
        raise UsageError(f"--engine ray:address={address}: no cluster answers there ({problem}).") from None
    try:
        # Ray shows a task only the GPUs that it asks for.
        needs = {"num_gpus": 1} if wants_card(device) and ray.cluster_resources().get("GPU", 0) else {}
        call = ray.remote(num_cpus=1, max_retries=PATIENCE, **needs)(numbered)
        waiting = [call.remote(work, place, item) for place, item in enumerate(items)]
        while waiting:
            done, waiting = ray.wait(waiting)
            yield ray.get(done[0])
    except ray.exceptions.WorkerCrashedError:
        raise RunError(KILLED) from None
    finally:
        ray.shutdown()


def wants_card(device: str | None) -> bool:
    """Whether a run goes to a GPU where there is one."""
    asked = (device or os.environ.get(VARIABLE) or "auto").strip().lower()
    return asked == "auto" or asked.startswith("cuda")


def check_listening(address: str) -> None:
    """Fail if nothing listens at host:port; Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=SECONDS).close()


CARRIERS: dict[str, Callable[..., Results]] = {"loky": on_this_machine, "dask": on_dask, "ray": on_ray}
