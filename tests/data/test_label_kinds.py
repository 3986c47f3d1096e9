"""Labels that are no classes are refused with the reason, and classes of every kind pass."""

from __future__ import annotations

import itertools
import re
import string
from pathlib import Path

import numpy as np
import pytest

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.label_kinds import why_no_classes
from fedwinnow.data.load import load
from fedwinnow.errors import DataError

random = np.random.RandomState(7)


def counted(values) -> dict[str, int]:
    texts, counts = np.unique([str(value) for value in values], return_counts=True)
    return dict(zip(texts.tolist(), counts.tolist(), strict=True))


CLASSES = {
    "two": ["yes", "no"] * 50,
    "digits": list(range(10)) * 20,
    "letters": list(string.ascii_uppercase) * 30,
    "letters as numbers": list(range(1, 27)) * 30,
    "a hundred numbered classes": list(range(100)) * 10,
    "a hundred with a long tail": np.repeat(range(100), [max(3, int(300 * 0.95**place)) for place in range(100)]),
    "a thousand": list(range(1000)) * 5,
    "ICD-10": list(itertools.islice(itertools.cycle(["E11.9", "I10", "J45.909", "C50.911", "K21.9"]), 100)),
    "many ICD-10": [f"{letter}{number}" for letter in "ABCDEF" for number in range(10, 20)] * 8,
    "ICD-9": ["250.00", "401.9", "428.0", "V45.81", "414.01"] * 20,
    "ICD-9, numbers only": [250, 401, 428, 414, 427, 276, 272, 285, 496, 518, 599, 584] * 9,
    "30 ICD-9": [str(code) for code in random.choice(np.arange(100, 999), 30, replace=False)] * 10,
    "a score of 0 to 10": list(range(11)) * 9,
    "grades with halves": [0, 0.5, 1, 1.5, 2] * 20,
    "minus one and one": [-1, 1] * 30,
    "a comma in a name": ["Adenocarcinoma, NOS", "Melanoma, NOS", "Naevus"] * 20,
    "sides": ["fracture, left", "fracture, right", "sprain, left", "sprain, right", "none"] * 20,
    "one class for both": ["diabetes", "hypertension", "diabetes, hypertension"] * 30,
    "inflamed": ["benign", "malignant", "benign, inflamed", "malignant, inflamed"] * 30,
    "words": ["alt.atheism", "comp.graphics", "sci.med"] * 30,
    "a small table": ["a", "b", "c"],
    "soybean-like": [f"disease {number}" for number in range(19)] * 4,
    "ranges": ["0-5", "6-10", "11-20"] * 10,
    "decimal commas": ["1,5", "2,5", "3,5"] * 10,
}

AGES = np.clip(random.normal(60, 12, 1000).round(), 20, 95).astype(int)
MULTI = ["effusion", "mass", "nodule", "effusion|mass", "mass|nodule", "effusion|nodule", "no finding"]
NO_CLASSES = {
    "ages": (AGES, "looks like a measurement"),
    "50 whole numbers, all frequent": (list(range(20, 70)) * 20, "50 different whole numbers from 20 to 69"),
    "blood pressure": (random.normal(130, 15, 2000).round().astype(int), "looks like a measurement"),
    "grams": (random.randint(500, 5000, 400), "does not look like a class"),
    "grams, some twice": (
        np.repeat(random.choice(np.arange(500, 5000), 90), [1, 2, 6] * 30),
        "looks like a measurement",
    ),
    "HbA1c": ((random.normal(7, 1, 3000)).round(1), "numbers with decimals"),
    "lengths": (random.rand(300).round(6), "300 different values in 300 rows, one in each"),
    "ids": ([f"patient {number}" for number in range(40)], "40 different values in 40 rows, one in each"),
    "pipes": (MULTI * 20, r"several labels in one cell, separated by '\|'"),
    "semicolons": ([label.replace("|", ";") for label in MULTI] * 20, "separated by ';'"),
    "semicolons and blanks": ([label.replace("|", "; ") for label in MULTI] * 20, "separated by ';'"),
    "commas": ([label.replace("|", ", ") for label in MULTI] * 20, "separated by ','"),
    "never alone": (["a;b", "b;c", "c;a", "b;a"] * 20, "several labels in one cell"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_pass(name):
    assert why_no_classes(counted(CLASSES[name])) == ""


@pytest.mark.parametrize("name", NO_CLASSES)
def test_what_is_no_class_is_refused_with_the_reason(name):
    values, reason = NO_CLASSES[name]
    assert re.search(reason, why_no_classes(counted(values)))


def test_a_table_is_refused_and_can_insist(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("x,age\n" + "".join(f"{row % 7},{age}\n" for row, age in enumerate(AGES)), encoding="utf-8")
    with pytest.raises(DataError, match=r"the label column 'age' has \d+ different whole numbers.*classes=any"):
        load(f"csv:path={path},label=age")
    assert load(f"csv:path={path},label=age,classes=any").classes > 40


def test_arrays_are_refused_and_can_insist():
    x = np.zeros((len(AGES), 1))
    with pytest.raises(DataError, match=r"arrays: y has \d+ different whole numbers.*class_names"):
        from_arrays(x, AGES)
    names = [str(age) for age in np.unique(AGES)]
    assert from_arrays(x, np.searchsorted(np.unique(AGES), AGES), class_names=names).classes > 40
