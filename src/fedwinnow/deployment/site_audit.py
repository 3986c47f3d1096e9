"""The verdict that a site keeps at the end of a run: which of its labels are worth a look, as a table and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.auditing.audit_folder import CANNOT_TELL, FEWEST_OF_SITE, TOO_FEW, Previews, SiteVerdict, write_site
from fedwinnow.auditing.audit_report import write_report
from fedwinnow.auditing.statements import CANNOT, SEEN, Statement
from fedwinnow.data.dataset import Dataset
from fedwinnow.federation.host import Answer
from fedwinnow.randomness import Floats, Integers

THRESHOLD = 0.5  # of the method's own p_wrong: from here on it suggests another label
P_WRONG = "p_wrong is empty: the models have seen the labels. The score puts the labels in order, nothing more."
LEAST = 1e-6  # p_wrong is cut to stay this far from 0 and 1, so that its log-odds are finite
SHOWN = 60  # samples with a preview, the most suspicious first


def write_own_audit(
    name: str, dataset: Dataset, given: Integers, run: dict[str, Any], verdict: Answer, folder: Path
) -> None:
    """Write audit.csv, site.json and report.html into the site's folder."""
    p_wrong = verdict.reply["p_wrong"].double().numpy()
    enough = len(given) >= FEWEST_OF_SITE
    order = np.argsort(-p_wrong, kind="stable")
    suggested = np.where(p_wrong >= THRESHOLD, verdict.reply["suggested"].numpy(), given)
    found = SiteVerdict(
        site=name,
        class_names=tuple(run["task"]["class_names"]),
        rows=order,
        ids=dataset.train.ids[order],
        given=given[order],
        suggested=suggested[order],
        score=log_odds(p_wrong[order]),
        p_wrong=np.full(len(order), np.nan),  # the method has seen the labels, so there is an order and no probability
        decision=np.full(len(order), CANNOT_TELL if enough else TOO_FEW),
        compared={place: [[], []] for place in range(min(SHOWN, len(order)))},
        statement=Statement(CANNOT, SEEN if enough else "There are too few samples to judge."),
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
        "claims": {"said": CANNOT, "reason": SEEN, "skill": None, "calls": 0},
        "assumptions": [],
    }
