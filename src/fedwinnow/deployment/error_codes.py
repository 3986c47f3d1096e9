"""The codes in which a site tells the coordinator that something went wrong; the text itself stays at the site."""

from __future__ import annotations

from typing import Any, TypeVar

from fedwinnow.errors import FedwinnowError

Problem = TypeVar("Problem", bound=FedwinnowError)

# code -> what the coordinator shows for it. docs/deploy.md has the same table, with what to do.
REFUSED, UNDECIDED, DEPARTED, FAILED, LEDGER = "refused", "undecided", "departed", "failed", "ledger"
CODES = {
    REFUSED: "the site refused",
    UNDECIDED: "the people at the site have not answered yet",
    DEPARTED: "it was asked for something else than was agreed at the start",
    "version": "it has another version of fedwinnow",
    "settings": "it cannot use a setting of this run",
    "scene": "it has another scene, or it has data and the coordinator a scene, or the other way round",
    "classes": "its data has classes that are not among the coordinator's",
    "samples": "its samples have another form or other columns than the coordinator's",
    "encoder": "its encoder is another one or its files are not named (join --encoder), or the scaling does not fit it",
    "model": "the first model, or its frozen part, is not the one that it makes itself",
    "question": "it does not answer such a question",
    "message": "it could not read the message",
    "changed": "its data has changed since the run began",
    "reply": "its reply was not fit to be sent",
    "sum": "it refused to go on with a secure sum: it was told what an honest coordinator would not say",
    LEDGER: "it could not write its ledger, so it sent nothing",
    FAILED: "it failed",
}


def for_others(problem: Problem, code: str) -> Problem:
    """Choose what another machine is told of an error: this code, and nothing else."""
    assert code in CODES, code
    problem.code = code
    return problem


def in_words(code: Any) -> str:
    """What a coordinator shows for a code that a site sent; the text of an unknown one is not repeated."""
    if not isinstance(code, str) or code not in CODES:
        return "it failed, and its code is not known here"
    return f"{CODES[code]} (code {code})"
