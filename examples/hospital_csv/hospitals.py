"""Three hospitals, one table each can only see a third of: find wrong diagnoses, look, decide, write corrected data.

python examples/hospital_csv/hospitals.py

Everything is made here and written below ./hospital-example. With your own table only the name of the file and of
three columns differ.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

import fedwinnow
from fedwinnow.auditing.decisions import Decision, save_decision
from fedwinnow.auditing.looks import Survey, draw_looks, read_looks
from fedwinnow.cli import dispatch

HERE = Path("hospital-example")
HOSPITALS = ("north", "south", "east")


def write_patients(path: Path, rows: int = 600, wrong: float = 0.1) -> dict[str, str]:
    """A made-up table: ill patients are older and have a higher pressure. The right diagnoses are given back."""
    luck = np.random.RandomState(7)
    truth = {}
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["patient", "hospital", "age", "pressure", "smoker", "diagnosis"])
        for number in range(rows):
            ill = number % 2 == 0
            right, other = ("ill", "well") if ill else ("well", "ill")
            patient, given = f"p{number:03d}", other if luck.rand() < wrong else right
            age, pressure = luck.normal(62 if ill else 41, 7), luck.normal(150 if ill else 122, 8)
            smoker = "yes" if luck.rand() < (0.6 if ill else 0.2) else "no"
            table.writerow([patient, HOSPITALS[number % 3], f"{age:.0f}", f"{pressure:.0f}", smoker, given])
            truth[patient] = right
    return truth


def look(folder: Path, truth: dict[str, str]) -> None:
    """Thirty looks, drawn by lot; in a terminal: fedwinnow review FOLDER --anchor 30.

    Here somebody who knows the truth answers; with your own data that is you.
    """
    for _ in range(2):  # fifteen, and then fifteen more where the first ones left it open
        survey = Survey(folder)
        draw_looks(survey, 30)
        for site in survey.sites:
            for sample in read_looks(site.folder):
                right = truth[sample] == site.rows[site.by_id[sample]]["given"]
                answer = Decision.now(sample, "anna", "keep" if right else "other", truth[sample])
                save_decision(site.folder, sample, "anna", answer)


def decide(folder: Path, truth: dict[str, str]) -> int:
    """What a person does in a spreadsheet, or on the page of `fedwinnow review`: a word in the column `decision`.

    Here somebody who knows the truth looks at every label that is called; with your own data that is you.
    """
    path, accepted = folder / "audit.csv", 0
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        if row["decision"] == "review":
            better = row["suggested"] == truth[row["id"]]
            row["decision"] = "accept" if better else "keep"
            accepted += better
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    return accepted


def wrong_labels(path: Path, truth: dict[str, str]) -> int:
    """How many diagnoses of a table are not the right ones; only an example knows."""
    with path.open(encoding="utf-8", newline="") as stream:
        return sum(row["diagnosis"] != truth[row["patient"]] for row in csv.DictReader(stream))


def main() -> None:
    """Audit, look at thirty labels, decide on what is called, apply."""
    HERE.mkdir(exist_ok=True)
    patients, corrected = HERE / "patients.csv", HERE / "corrected.csv"
    truth = write_patients(patients)
    found = fedwinnow.audit(data=f"csv:path={patients},label=diagnosis,id=patient", site="hospital", out=HERE / "audit")
    print(found)
    print(found.facts["claims"]["reason"])
    look(HERE / "audit", truth)
    dispatch(["audit", "--update", str(HERE / "audit")])  # in a terminal: fedwinnow audit --update ...
    for site in HOSPITALS:
        accepted = decide(HERE / "audit" / site, truth)
        print(f"{site}: {accepted} suggestions accepted; {HERE / 'audit' / site / 'report.html'}")
    dispatch(["apply", str(HERE / "audit"), "--out", str(corrected)])  # in a terminal: fedwinnow apply ...
    print(f"wrong diagnoses: {wrong_labels(patients, truth)} before, {wrong_labels(corrected, truth)} after")


if __name__ == "__main__":
    main()
