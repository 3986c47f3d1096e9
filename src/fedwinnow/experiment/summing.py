"""Secure sums in a run: what is refused, how a simulation plays them, and what the run says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedwinnow.errors import UsageError
from fedwinnow.experiment.encoder_sums import refuse_few
from fedwinnow.experiment.prepare import Stage
from fedwinnow.federation.backend import Backend
from fedwinnow.federation.ledger import FROM_SEED, FROM_SYSTEM
from fedwinnow.federation.method import Method
from fedwinnow.federation.server import participants
from fedwinnow.mathematics.payload import Exposure

if TYPE_CHECKING:
    from fedwinnow.federation.summing.summed_exchange import SummedExchanges


def refuse_single_replies(method: Method) -> None:
    """Refuse a method that must see single replies of sites."""
    if "pooled_data" in method.needs:
        raise UsageError(f"--secure-sums was given, but method '{method.name}' is not federated; choose another.")
    if single := method.singles():
        shown = ", ".join(f"'{key}'" for key in single)
        raise UsageError(
            f"--secure-sums was given, but method '{method}' must see {shown} of every single site; allowed: methods "
            f"that need sums only, such as fedavg or winnow (`fedwinnow methods` says which)."
        )


def refuse_unsummable(stage: Stage) -> None:
    """Refuse a run that secure sums are not enough for."""
    refuse_single_replies(stage.method)
    refuse_few(participants(stage.experiment.participation, stage.sites.holdings.clients, len(stage.available)))


def secure_sums_here(backend: Backend, stage: Stage) -> SummedExchanges:
    """The secure sums of a simulation on this machine; every secret follows from the seed."""
    from fedwinnow.federation.summing.secure_sums import sums_in_simulation
    from fedwinnow.federation.summing.summed_exchange import SummedExchanges

    experiment = stage.experiment
    share = experiment.secure_threshold
    return SummedExchanges(sums_in_simulation(backend, stage.method, stage.site_names, experiment.seed, share))


def exposed_in_sums() -> dict[str, Exposure]:
    """What sites send with secure sums."""
    from fedwinnow.federation.summing.summed_form import EXPOSED

    return dict(EXPOSED)


def sums_in_summary(stage: Stage, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the run says of its secure sums."""
    return {
        "masks_from": FROM_SEED if stage.simulated else FROM_SYSTEM,
        "threshold": stage.experiment.secure_threshold,
        "clipped": sum(row.get("clipped", 0) for row in rounds),
        "skipped_rounds": sum("skipped" in row for row in rounds),
    }
