"""Where the runs of a sweep go: processes of this machine, a Dask cluster or a Ray cluster, all through joblib."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedwinnow.errors import RunError, UsageError, missing_extra, unknown
from fedwinnow.options import parse_spec

ENGINES = {"loky": set[str](), "dask": {"address"}, "ray": {"address"}}
PATIENCE = 2  # how often the rest is given out again after a process of this machine died


@dataclass(frozen=True)
class Engine:
    """A joblib backend with its options."""

    name: str
    options: dict[str, str]
    jobs: int

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
                f"--jobs {self.jobs} was given with --engine dask:address={self.options['address']}, whose scheduler "
                "has workers of its own and uses all of them. Leave --jobs at 1, and start as many workers as you want."
            )

    @property
    def has_workers(self) -> bool:
        """Whether somebody else has decided how many runs go at a time."""
        return self.name == "dask" and "address" in self.options

    @property
    def pace(self) -> str:
        """How many runs go at a time, in words."""
        theirs = self.has_workers or (self.name == "ray" and self.jobs == 1)  # of Ray, one means all
        return "as many at a time as there are workers" if theirs else f"{self.jobs} at a time"

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Place and result of the work on every item, as they come."""
        if self.name == "loky":
            yield from self.on_this_machine(work, items)
        elif items:
            with self.cluster() as workers:
                yield from self.through_joblib(work, list(enumerate(items)), workers)

    def on_this_machine(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Processes of this machine; when one dies, what is not done is given out again."""
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        left = dict(enumerate(items))
        for attempt in range(PATIENCE + 1):
            try:
                for place, result in self.through_joblib(work, list(left.items()), self.jobs):
                    del left[place]
                    yield place, result
                return
            except TerminatedWorkerError:
                if attempt == PATIENCE:
                    raise RunError(
                        "processes of the sweep were killed again and again, perhaps for lack of memory. "
                        "Use fewer --jobs; the same command continues."
                    ) from None

    def through_joblib(
        self, work: Callable[[Any], Any], items: Sequence[tuple[int, Any]], workers: int
    ) -> Iterator[tuple[int, Any]]:
        """One joblib call; Ray's backend gives its results only when all are there."""
        from joblib import Parallel, delayed

        form = "list" if self.name == "ray" else "generator_unordered"
        calls = (delayed(numbered)(work, place, item) for place, item in items)
        yield from Parallel(n_jobs=workers, batch_size=1, pre_dispatch="all", return_as=form)(calls)

    @contextlib.contextmanager
    def cluster(self) -> Iterator[int]:
        """joblib's backend while the block runs."""
        from joblib import parallel_config

        if self.name == "ray":
            connect_ray(self.options.get("address"))
            with parallel_config(backend="ray"):
                yield self.jobs if self.jobs > 1 else -1
        else:
            with dask_client(self.options.get("address"), self.jobs), parallel_config(backend="dask"):
                yield -1


def make_engine(spec: str, jobs: int) -> Engine:
    """An engine from `loky`, `dask:address=tcp://host:8786` or `ray:address=auto`."""
    name, options = parse_spec(spec)
    return Engine(name, dict(options), jobs)


def numbered(work: Callable[[Any], Any], place: int, item: Any) -> tuple[int, Any]:
    """The result of work with the place of its item."""
    return place, work(item)


@contextlib.contextmanager
def dask_client(address: str | None, workers: int) -> Iterator[None]:
    """A connection to a Dask scheduler, or a cluster of processes on this machine where no address is given."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise missing_extra("dask", "--engine dask") from None
    if address is not None:
        try:
            with Client(address, timeout=20, set_as_default=True):
                yield
        except (OSError, TimeoutError) as problem:
            raise UsageError(f"--engine dask:address={address}: no scheduler answers there ({problem}).") from None
        return
    # One thread a worker: a run is a process of its own.
    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local, Client(local):
        yield


def connect_ray(address: str | None) -> None:
    """Ray as a backend of joblib."""
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise missing_extra("ray", "--engine ray") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError) as problem:
            raise UsageError(f"--engine ray:address={address}: no cluster answers there ({problem}).") from None
    register_ray()
