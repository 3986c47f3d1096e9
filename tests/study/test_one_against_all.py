"""One row against every other over all settings, with numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from fedwinnow.cli import main
from fedwinnow.errors import UsageError
from fedwinnow.study.table import Wanted, make_table
from run_folders import write_run, write_runs

LEADS = {"iid": 0.10, "shards": 0.02, "dirichlet": 0.06}  # of winnow over fedavg, by partition


def study(place, leads=LEADS):
    for partition, lead in leads.items():
        values = {"fedavg": [0.50, 0.52], "sce": [0.55, 0.57], "winnow": [0.50 + lead, 0.52 + lead]}
        write_runs(place, values, partition=partition)
    return place


def notes(place, **wanted):
    made = make_table([place], Wanted(**({"show": "last10", "against": "winnow"} | wanted)))
    return [note for note in made.notes if " against " in note]


def test_differences_wins_and_corrected_p_by_hand(tmp_path):
    heading, fedavg, sce = notes(study(tmp_path))
    assert heading.startswith("Winnow against each other row, by last 10 rounds")
    # Three settings, all better: Wilcoxon's p is 2 / 2^3 = 0.25, twice that after Holm.
    assert fedavg == "Winnow against FedAvg: +6.00 on average, better in 3 of 3; p = 0.500."
    # Leads of 5, -3 and 1 points: of the eight sums of the ranks 3, 2, 1, six are as far from their middle as 3 + 1.
    assert sce == "Winnow against SCE: +1.00 on average, better in 2 of 3; p = 0.750."


def test_where_less_is_better_a_lead_is_still_positive(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, 0.5, partition="iid")
        write_run(tmp_path / f"b{seed}", "winnow", seed, 0.5, partition="iid")
    for path, share in ((tmp_path / "a0", 0.4), (tmp_path / "a1", 0.4), (tmp_path / "b0", 0.1), (tmp_path / "b1", 0.1)):
        summary = (path / "summary.json").read_text()
        (path / "summary.json").write_text(summary[:-1] + f', "memorisation": {{"memorised": {share}}}}}')
    assert "+30.00 on average" in notes(tmp_path, show="memorised")[1]


def test_other_scenes_and_missing_settings_do_not_count(tmp_path):
    study(tmp_path)
    write_run(tmp_path / "alone", "winnow", 0, 0.9, partition="quantity")
    write_run(tmp_path / "other-scene", "fedavg", 0, 0.1, partition="quantity", hash="another")
    assert "better in 3 of 3" in notes(tmp_path)[1]


def test_a_row_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(UsageError, match=r"unknown row for --against 'winow'\. Did you mean 'winnow'"):
        notes(study(tmp_path), against="winow")
    with pytest.raises(SystemExit) as end:
        main(["table", str(tmp_path), "--show", "last10", "--against", "winnow", "--format", "markdown"])
    assert end.value.code == 0
    assert "Winnow against FedAvg: +6.00" in capsys.readouterr().out
