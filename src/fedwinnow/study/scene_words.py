"""Scenes in words for the heads of tables and figures: "symmetric 40 %, IID sites" for "iid, constant:rate=0.4"."""

from __future__ import annotations

from collections.abc import Callable

from fedwinnow.errors import UsageError
from fedwinnow.options import parse_spec

Values = dict[str, str]
DATA = {
    "cifar10": "CIFAR-10",
    "cifar10n": "CIFAR-10N",
    "cifar100": "CIFAR-100",
    "cifar100n": "CIFAR-100N",
    "fashion-mnist": "Fashion-MNIST",
    "clothing1m": "Clothing1M",
    "webvision": "WebVision",
    "mini-webvision": "mini-WebVision",
    "isic2019": "ISIC 2019",
    "ich": "ICH",
    "agnews": "AG News",
}
FLIPS = {
    "symmetric": "symmetric",
    "symmetric_all": "symmetric (any class)",
    "fedcorr_compat": "symmetric (classes 0 to 9)",
    "pair": "pair",
    "asymmetric": "asymmetric",
    "asymmetric_cyclic": "asymmetric (next class)",
    "mixed": "mixed",
    "instance": "instance-dependent",
}


def share(text: str) -> str:
    """A share in per cent: 40 for 0.4."""
    return f"{100 * float(text):g}"


# A rule takes the options it puts into words out of `values`; the others are added in brackets, so that two different
# scenes never have the same words.
def constant(values: Values) -> str:
    return f"{share(values.pop('rate', '0.4'))} %"


def uniform(values: Values) -> str:
    sites = share(values.pop("share", "1"))
    low, high = share(values.pop("low", "0.5")), share(values.pop("high", "1"))
    return f"{low} to {high} %" if sites == "100" else f"{low} to {high} % at {sites} % of sites"


def linear(values: Values) -> str:
    return f"{share(values.pop('low', '0'))} to {share(values.pop('high', '0.4'))} %, growing by site"


def gaussian(values: Values) -> str:
    return f"N({values.pop('mean', '0.3')}, {values.pop('std', '0.2')})"


def fedcorr(values: Values) -> str:
    return f"rho {values.pop('rho', '0.6')}, tau {values.pop('tau', '0.5')}"


def human(values: Values) -> str:
    return f"human errors ({values.pop('column')})"


RATES: dict[str, tuple[Callable[[Values], str], str]] = {
    "constant": (constant, "symmetric"),
    "uniform": (uniform, "symmetric"),
    "linear": (linear, "symmetric"),
    "gaussian": (gaussian, "symmetric"),
    "fedcorr": (fedcorr, "symmetric_all"),
}
OTHER_NOISES: dict[str, Callable[[Values], str]] = {
    "none": lambda values: "no noise",
    "no noise": lambda values: "no noise",
    "given": lambda values: "labels as given",
    "human": human,
}
PARTITIONS: dict[str, Callable[[Values], str]] = {
    "iid": lambda values: "IID sites",
    "dirichlet": lambda values: f"Dirichlet({values.pop('alpha', '0.3')}) sites",
    "fedrn_dirichlet_compat": lambda values: f"Dirichlet({values.pop('beta', '0.5')}) sites as in FedRN",
    "bernoulli_dirichlet": lambda values: (
        f"Bernoulli({values.pop('p', '0.3')}) Dirichlet({values.pop('alpha', '10')}) sites"
    ),
    "quantity": lambda values: f"sizes by Dirichlet({values.pop('alpha', '1')})",
    "shards": lambda values: f"{values.pop('per_client', '2')} shards per site",
    "classes": lambda values: f"{values.pop('per_client', '3')} classes per site",
    "column": lambda values: "sites of the data",
}


def noise_in_words(spec: str) -> str | None:
    """A noise in words; None if it is not one of fedwinnow's."""
    name, values = parse_spec(spec)
    try:
        if name in OTHER_NOISES:
            return with_rest(OTHER_NOISES[name](values), values)
        if name not in RATES:
            return None
        rule, usual = RATES[name]
        flip = values.pop("flip", usual)
        rate = rule(values)
    except (ValueError, KeyError):  # an option that is no number, or is missing
        return None
    said = flip_in_words(flip)
    if said is None:
        values["flip"] = flip
    kind = "symmetric" if name == "fedcorr" and flip == usual else said or ""
    return with_rest(f"{kind} {rate}".strip(), values)


def flip_in_words(spec: str) -> str | None:
    """What wrong labels become, in words; None if it is not one of fedwinnow's."""
    name, values = parse_spec(spec)
    if name not in FLIPS:
        return None
    words = FLIPS[name]
    if name == "pair" and values.get("step") == "-1":
        del values["step"]
        words = "pair (class before)"
    if name == "mixed" and (other := flip_in_words(values.get("asymmetric", "asymmetric_cyclic"))) is not None:
        values.pop("asymmetric", None)
        who = "first half" if values.pop("reading", "random") == "halves" else "some"
        words = f"{who} symmetric, others {other},"
    return with_rest(words, values)


def partition_in_words(spec: str) -> str | None:
    """A partition in words; None if it is not one of fedwinnow's."""
    name, values = parse_spec(spec)
    return with_rest(PARTITIONS[name](values), values) if name in PARTITIONS else None


def data_in_words(spec: str) -> str | None:
    """A data source in words; None if it has no other name in print."""
    name, values = parse_spec(spec)
    return with_rest(DATA[name], values) if name in DATA else None


def with_rest(words: str, values: Values) -> str:
    """The words, with the options that they do not say in brackets."""
    rest = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{words} ({rest})" if rest else words


def scene_in_words(name: str) -> str:
    """The name of a column with its specs in words, first the data, then the noise; other names stay as they are."""
    found: list[tuple[int, str]] = []
    for piece in name.split(", "):
        try:
            tries = [data_in_words(piece), noise_in_words(piece), partition_in_words(piece)]
        except UsageError:  # no spec
            return name
        place = next((number for number, words in enumerate(tries) if words), 3)
        found.append((place, (*tries, setting_in_words(piece))[place] or piece))
    return ", ".join(words for _, words in sorted(found, key=lambda one: one[0]))


def setting_in_words(piece: str) -> str:
    """`clients=5` as `5 sites`, `batch_size=10` as `batch size 10`."""
    key, equals, value = piece.partition("=")
    if not equals or ":" in key or not key.isidentifier():
        return piece
    return f"{value} sites" if key == "clients" else f"{key.replace('_', ' ')} {value}"
