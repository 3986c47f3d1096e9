"""The part of a traceback that belongs to a method, which its author needs to see first."""

from __future__ import annotations

import traceback
from pathlib import Path

# Files that pass a question to a method and its answer back: their frames do not help to find the error.
CARRIERS = (str(Path(__file__).with_name("host.py")), str(Path(__file__).with_name("rounds.py")))


def frames_of_method(problem: BaseException) -> str:
    """The traceback of an error from the method's own function on; all of it if no such function was called."""
    place = problem.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename in CARRIERS:
        place = place.tb_next
    told = traceback.format_exception(type(problem), problem, place or problem.__traceback__)
    return "".join(told).rstrip()
