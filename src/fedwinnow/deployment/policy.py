"""A site's policy: what its people allow a coordinator to ask. What it does not name is refused."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedwinnow.deployment.exposure_limit import LEVELS
from fedwinnow.errors import DataError, UsageError, unknown
from fedwinnow.files import text_of, write_text

ANY = "any"
FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def rule(sentence: str, fits: Callable[[Any], bool], allowed: str, shipped: Any, *, demand: bool = False) -> Any:
    """Declare one key of a policy; `shipped` is its value in the default policy.

    A key that is left out allows nothing; a `demand` that is left out is not made.
    """
    metadata = {"sentence": sentence, "fits": fits, "allowed": allowed, "shipped": shipped, "demand": demand}
    return dataclasses.field(default=None, metadata=metadata)


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_bound(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


def is_names(value: Any) -> bool:
    return value == ANY or (isinstance(value, list) and all(isinstance(one, str) and one for one in value))


COUNT, BOUND = (is_count, "a whole number from 0 on"), (is_bound, "a number from 0 on")
NAMES = (is_names, '"any", or a list of names such as ["fedavg", "winnow"]')
YES_OR_NO = (lambda value: type(value) is bool, "true or false")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a site allows. The fields are the keys of the file."""

    methods: Any = rule("The methods that may run here, of those that are installed.", *NAMES, ANY)
    exposure: Any = rule(
        "The most that others may learn about: the model, the site as a whole (client), or single samples (sample).",
        lambda value: value in LEVELS,
        '"model", "client" or "sample"',
        "client",
    )
    models: Any = rule("The models that may be trained.", *NAMES, ANY)
    parameters: Any = rule("The most weights of a model; it is counted before it is built.", *COUNT, 100_000_000)
    encoders: Any = rule("The frozen encoders that may be used, with the weights that are installed here.", *NAMES, ANY)
    start: Any = rule(
        "The model of the first round: one that this site makes itself from the seed, bit for bit (seed), or any.",
        lambda value: value in ("seed", ANY),
        '"seed" or "any"',
        "seed",
    )
    rounds: Any = rule("The most rounds.", *COUNT, 1000)
    epochs: Any = rule("The most local epochs of a round.", *COUNT, 100)
    batch_size: Any = rule("The most samples of a training step.", *COUNT, 1024)
    optimizers: Any = rule("The optimisers that may be used.", *NAMES, ["sgd", "adam"])
    learning_rate: Any = rule("The largest learning rate.", *BOUND, 1.0)
    momentum: Any = rule("The largest momentum.", *BOUND, 0.99)
    weight_decay: Any = rule("The largest weight decay.", *BOUND, 1.0)
    largest_option: Any = rule(
        "The largest weight or factor among the options of a method or loss; a divisor may not be below 1 over this.",
        *BOUND,
        100.0,
    )
    input_size: Any = rule(
        "The largest size of the inputs of the model, as the root of their mean square (about 1 is usual): the "
        "coordinator decides how samples are scaled, and larger inputs are a larger learning rate.",
        *BOUND,
        10.0,
    )
    audit: Any = rule("Whether the run may be an audit of labels.", *YES_OR_NO, True)
    settings: Any = rule(
        "Other settings that may differ from their default, or be there at all.",
        *NAMES,
        ["privacy", "secure_sums", "secure_threshold", "masks_from"],
    )
    least_samples: Any = rule("Take part only with at least so many samples.", *COUNT, 0, demand=True)
    least_count: Any = rule("Numbers about fewer samples than this do not leave the site.", *COUNT, 5, demand=True)
    coordinator: Any = rule(
        "The coordinator's key, as `fedwinnow serve` prints it; any: whoever has a certificate that --tls accepts.",
        lambda value: value == ANY or (isinstance(value, str) and FINGERPRINT.fullmatch(value) is not None),
        '"any", or "sha256:" and 64 digits of 0-9 and a-f',
        ANY,
        demand=True,
    )

    HEAD: ClassVar[str] = (
        "# What this site allows a coordinator to ask: fedwinnow join --policy FILE.\n"
        "# A key that is left out allows nothing (the last three demand something: left out, they demand nothing).\n"
        "# No file is opened and no code is run that a coordinator names, whatever stands here.\n"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, meta = getattr(self, field.name), field.metadata
            if value is not None and not meta["fits"](value):
                raise UsageError(f"policy: {field.name} = {shown(value)} was given; allowed: {meta['allowed']}.")

    @property
    def key(self) -> str | None:
        """The fingerprint that the coordinator's key must have; None: it is not compared."""
        return None if self.coordinator in (None, ANY) else str(self.coordinator)

    def rules(self) -> dict[str, str]:
        """What is allowed, key by key, as in the file; a key that is not there allows nothing."""
        there = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: shown(value) for name, value in there if value is not None}

    def as_toml(self) -> str:
        """The file, with a comment for every key."""
        lines = [self.HEAD]
        for field in dataclasses.fields(self):
            value, meta = getattr(self, field.name), field.metadata
            lines.append(f"# {meta['sentence']} Allowed: {meta['allowed']}.")
            lines.append(f"{field.name} = {shown(value)}\n" if value is not None else f"# {field.name} =\n")
        return "\n".join(lines)


def shipped(**changes: Any) -> Policy:
    """The default policy, by which `join --yes` takes part."""
    return Policy(**{field.name: field.metadata["shipped"] for field in dataclasses.fields(Policy)} | changes)


def shown(value: Any) -> str:
    """A value as it stands in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(shown(one) for one in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def read_policy(path: Path) -> Policy:
    """The policy of a file; an unknown key is an error, because what was meant by it would not be kept."""
    if not path.is_file():
        raise DataError(f"--policy {path}: there is no such file. `fedwinnow join --write-policy {path}` writes one.")
    try:
        table = tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as problem:
        raise DataError(f"--policy {path}: not a TOML file ({problem}).") from None
    known = [field.name for field in dataclasses.fields(Policy)]
    for name in table:
        if name not in known:
            raise UsageError(f"--policy {path}: {unknown('key', name, known)}")
    try:
        return Policy(**table)
    except UsageError as problem:
        raise UsageError(f"--policy {path}: {problem}") from None


def write_policy(path: Path) -> None:
    """Write the default policy, for the people at the site to change; an existing file is not overwritten."""
    if path.exists():
        raise UsageError(f"--write-policy {path}: the file exists. Choose another name, or remove it first.")
    try:
        write_text(path, shipped().as_toml())
    except OSError as problem:
        raise DataError(f"--write-policy {path}: cannot be written ({problem.strerror}).") from None
