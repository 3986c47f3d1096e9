"""Whether a model has learned wrong labels by heart. Only a simulation, which has the truth, can say."""

from __future__ import annotations

import numpy as np

from fedwinnow.metrics.number_or_none import Figure, Values, count, share


def memorisation(predicted: Values, given: Values, true: Values) -> dict[str, Figure]:
    """What the model predicts for its own training samples, without random views.

    Of the wrongly labelled ones, `memorised` is the share predicted as their wrong given label and `corrected` the
    share predicted as their true one; `clean_correct` is the share of rightly labelled samples predicted right.
    """
    predicted, given, true = np.asarray(predicted), np.asarray(given), np.asarray(true)
    wrong = given != true
    as_true = predicted == true
    wrongs = count(wrong)
    return {
        "memorised": share(count(wrong & (predicted == given)), wrongs),
        "corrected": share(count(wrong & as_true), wrongs),
        "clean_correct": share(count(~wrong & as_true), len(true) - wrongs),
    }
