"""The verdict that a site keeps at the end of a run: which of its labels are worth a look, as a table and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.auditing.audit import UNKNOWN
from fedwinnow.auditing.audit_folder import FEWEST_OF_SITE, KEEP, REVIEW, TOO_FEW, Previews, SiteVerdict, write_site
from fedwinnow.auditing.audit_report import write_report
from fedwinnow.data.dataset import Dataset
from fedwinnow.federation.host import Answer
from fedwinnow.randomness import Floats, Integers

THRESHOLD = 0.5  # of the method's own p_wrong
P_WRONG = (
    "p_wrong is a score from 0 to 1 that puts the labels in order: how much the training method held against the given "
    "label. It does not say how many labels are wrong."
)
LEAST = 1e-6  # p_wrong is cut to stay this far from 0 and 1, so that its log-odds are finite
SHOWN = 60  # samples with a preview, the most suspicious first


def write_own_audit(
    name: str, dataset: Dataset, given: Integers, run: dict[str, Any], verdict: Answer, folder: Path
) -> None:
    """Write audit.csv, site.json and report.html into the site's folder."""
    p_wrong = verdict.reply["p_wrong"].double().numpy()
    enough = len(given) >= FEWEST_OF_SITE
    flagged = (p_wrong >= THRESHOLD) & enough
    order = np.argsort(-p_wrong, kind="stable")
    decision = np.where(flagged, REVIEW, KEEP if enough else TOO_FEW)
    suggested = np.where(flagged, verdict.reply["suggested"].numpy(), given)
    found = SiteVerdict(
        site=name,
        class_names=tuple(run["task"]["class_names"]),
        rows=order,
        ids=dataset.train.ids[order],
        given=given[order],
        suggested=suggested[order],
        score=log_odds(p_wrong[order]),
        p_wrong=p_wrong[order] if enough else np.full(len(order), np.nan),
        decision=decision[order],
        compared={place: [[], []] for place in range(min(SHOWN, int(flagged.sum())))},
    )
    write_site(folder, found, Previews.of(dataset), facts_of(dataset, run))
    write_report(folder)


def log_odds(share: Floats) -> Floats:
    """The logarithm of p / (1 - p), finite also for 0 and 1."""
    held = np.clip(share, LEAST, 1 - LEAST)
    return np.log(held) - np.log1p(-held)


def facts_of(dataset: Dataset, run: dict[str, Any]) -> dict[str, Any]:
    """The facts of the report: how the labels were judged."""
    experiment = run["experiment"]
    return {
        "data": {"name": dataset.name, "kind": dataset.kind, "source": dataset.source},
        "method": str(experiment["method"]["kind"]),
        "judge": "the method's own",
        "rounds": experiment["rounds"],
        "seed": experiment["seed"],
        "sites": run["clients"],
        "threshold": THRESHOLD,
        "p_wrong": P_WRONG,
        **UNKNOWN,
    }
