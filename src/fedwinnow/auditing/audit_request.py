"""From what a user asks for to the settings of an audit: whose labels, who holds what, which run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from fedwinnow.auditing.audit import DEFAULT_JUDGE, AuditSettings, without_test_part
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load, understood
from fedwinnow.data.source import Source
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment, experiment_of
from fedwinnow.options import parse_spec
from fedwinnow.setting import settings_in

RUN_JUDGE = "final:prior=false"  # a run that was not made for an audit has kept nothing but its model


def choices_of(threshold: float | None, expected_false_alarms: float | None, self_test: bool | None) -> dict[str, Any]:
    """What a user chose of the audit itself; two choices of version 0.1 are answered here and have no effect."""
    if expected_false_alarms is not None:
        raise UsageError(
            f"--expected-false-alarms {expected_false_alarms} was given; it is withdrawn: how many of the labels worth "
            "a look are right after all is not known before a person has looked. Use --threshold, a limit of p_wrong."
        )
    if self_test is not None:
        warnings.warn(
            "--no-self-test (in Python self_test=) has no effect: there is no self-test any more. The next version "
            "will not know it.",
            FedwinnowWarning,
            stacklevel=2,
        )
    return {} if threshold is None else {"threshold": threshold}


def with_site_column(data: Any, site: str | None) -> Any:
    """The data with the column that names the site of every sample."""
    if site is None:
        return data
    found = understood(data)
    if isinstance(found, str):
        name, values = parse_spec(found)
        found = {"kind": name, **values}
    if not isinstance(found, dict):
        raise UsageError("--site names a column of a table; write it into the data itself here.")
    if found.get("site", site) != site:
        raise UsageError(f"--site {site} was given, but the data says site={found['site']}. Give one of them.")
    return {**found, "site": site}


def settings_for(
    data: Any,
    *,
    site: str | None = None,
    clients: int | None = None,
    partition: Any = None,
    judge: str | None = None,
    choices: dict[str, Any] | None = None,
    **others: Any,
) -> AuditSettings:
    """The settings of an audit that trains by itself; `choices` are those of the audit, `others` of its training."""
    if clients is not None and clients < 1:
        raise UsageError(f"--clients {clients} was given; allowed: 1 or more.")
    if clients is not None and site is not None:
        raise UsageError("--site and --clients exclude each other: the column says who holds what, or chance does.")
    dataset = data if isinstance(data, Dataset) else load_data(with_site_column(data, site))
    if partition is None or clients is None:
        partition = partition_of(dataset, clients, partition)
    settings = {"data": dataset, "clients": clients or 1, "partition": partition, **others}
    experiment = experiment_of(settings)
    return AuditSettings(without_test_part(experiment), judge or DEFAULT_JUDGE, **(choices or {}))


def settings_asked(asked: AuditAsked, data: Any, choices: dict[str, Any]) -> AuditSettings:
    """The settings of an audit that trains by itself, of this data."""
    who = ("data", "clients", "partition")
    training = {name: getattr(asked, name) for name in settings_in(Experiment) if name not in who}
    return settings_for(
        data,
        site=asked.site,
        clients=asked.clients,
        partition=asked.partition,
        judge=asked.judge,
        choices=choices,
        **training,
    )


def load_data(data: str | Path | dict[str, Any] | Source) -> Dataset:
    """Load once; what the audit writes about its data is then about exactly this."""
    return load(data)


def partition_of(dataset: Dataset, clients: int | None, asked: Any) -> str:
    """Who holds what: the data says it, or it is dealt out to so many sites for a trial."""
    if clients is not None:
        return "iid"
    if str(asked) not in ("None", "column"):
        raise UsageError(f"--partition {asked} deals the samples out; add --clients N to say to how many sites.")
    if dataset.train.sites is None:
        raise UsageError(
            f"nobody says which site holds which sample of {dataset.name}. Give --site COLUMN for a table, or "
            "--clients N to deal the samples out to N sites for a trial."
        )
    return "column"


def settings_of_run(folder: Path, judge: str | None, choices: dict[str, Any]) -> AuditSettings:
    """The settings of an audit by the model of a run."""
    run = RunFolder.existing(folder)
    table = run.settings()
    try:
        experiment = Experiment(**{**table, "scene": Path(table["scene"]) if "scene" in table else None})
    except (ValueError, TypeError) as problem:
        raise DataError(f"{run.path / 'config.toml'}: not the settings of a run ({problem}).") from None
    return AuditSettings(experiment, judge or RUN_JUDGE, run=folder, **choices)
