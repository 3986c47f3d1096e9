"""What the methods are called in tables, figures and on the board; this is the only place that has these names."""

from __future__ import annotations

import re
from pathlib import Path

from fedwinnow.errors import UsageError
from fedwinnow.options import format_value, parse_spec

# name in a spec -> name in print; the order also gives the methods their colours, so a new one is added at the end
TITLES = {
    "fedavg": "FedAvg",
    "winnow": "Winnow",
    "feddiv": "FedDiv",
    "fedgr": "FedGR",
    "fedrn": "FedRN",
    "fednoro": "FedNoRo",
    "fedes": "FedES",
    "fedcorr": "FedCorr",
    "gce": "GCE",
    "sce": "SCE",
    "fedprox": "FedProx",
    "coteaching": "Co-teaching",
    "oracle": "Oracle",
    "mixup": "MixUp",
    "fedelc": "FedELC",
    "dividemix": "DivideMix",
    "jointopt": "Joint optimisation",
    "selfie": "SELFIE",
    "rofl": "Robust FL",
    "arfl": "ARFL",
    "fedfixer": "FedFixer",
    "fedlsr": "FedLSR",
    "median": "Median",
    "krum": "Krum",
    "trimmed_mean": "Trimmed mean",
    "centralised": "Centralised",
    "local": "Local",
    "cdr": "CDR",
    "fair": "FAIR",
    "fedsir": "FedSIR",
    "geometric_median": "Geometric median",
    "logit_adjustment": "Logit adjustment (FedLA)",
    "multi_krum": "Multi-Krum",
    "norm_clipping": "Norm clipping",
    "rhfl": "RHFL",
    "s_fedavg": "S-FedAvg",
}
PRINTED = {"s-fedavg": "s_fedavg", "fedla": "logit_adjustment"}  # names in the papers' tables
VARIANT = re.compile(r"([\w-]+)\[(.+)\]")  # a row of a paper's table, such as feddiv[no-pcs]


def method_of(row: str) -> str:
    """The method behind a row's name: `feddiv` for feddiv, feddiv:eta=1 and feddiv[no-pcs]; the row if it has none."""
    variant = VARIANT.fullmatch(row)
    head = variant[1] if variant else row.partition(":")[0]
    known = {title.lower(): name for name, title in TITLES.items()}
    head = PRINTED.get(head, head)
    return head if head in TITLES else known.get(row.lower(), head if is_spec(row) else row)


def title_of(row: str) -> str:
    """A row's name in print: FedDiv, FedDiv (eta=1), FedDiv (no-pcs); a name that is no spec stays as it is."""
    if variant := VARIANT.fullmatch(row):
        return f"{title_of(variant[1])} ({variant[2]})"
    row = PRINTED.get(row, row)
    if not is_spec(row):
        return row
    name, values = parse_spec(row)
    options = ", ".join(f"{key}={format_value(value)}" for key, value in values.items())
    head = TITLES.get(name) or Path(name.replace("\\", "/")).stem
    return f"{head} ({options})" if options else head


def is_spec(row: str) -> bool:
    """Whether a row's name is the spec of a method, not a name that a person gave."""
    try:
        name, _ = parse_spec(row)
    except UsageError:
        return False
    return name in TITLES or (name.endswith(".py") and " " not in name)
