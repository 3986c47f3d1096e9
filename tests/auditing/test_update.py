"""`audit --update`: looks become figures, and the audit as it was is not lost."""

from __future__ import annotations

import json

import pytest

from auditing_material import lines
from fedwinnow.auditing.looks import Survey, draw_looks, read_looks
from fedwinnow.auditing.update import update_audit
from fedwinnow.errors import UsageError
from looks_material import answer, make_audit


def looked(folder, truth, total=30):
    """A person answers all looks truly."""
    survey = Survey(folder)
    while draw_looks(survey, total):
        for site in survey.sites:
            for name in read_looks(site.folder):
                answer(site.folder, site.name, name, truth)
    return survey


def content(folder, name="site.json"):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def true_precision(folder, truth):
    rows = [row for row in lines(folder / "audit.csv") if row["decision"] == "review"]
    return sum(truth[row["site"], row["id"]] != row["given"] for row in rows) / len(rows), len(rows)


def test_cannot_tell_is_settled_by_a_list(tmp_path):
    truth = make_audit(tmp_path / "audit")
    site = tmp_path / "audit" / "north"
    before = (site / "audit.csv").read_text(encoding="utf-8")
    looked(site, truth)
    found = update_audit(site)
    assert found.looks["settled"] == "a list"
    assert (site / "audit-before-looks.csv").read_text(encoding="utf-8") == before
    rows = lines(site / "audit.csv")
    assert {row["decision"] for row in rows} == {"review", "keep"}
    assert list(rows[0]) == list(lines(site / "audit-before-looks.csv")[0])
    p_wrong = [float(row["p_wrong"]) for row in rows]
    assert p_wrong == sorted(p_wrong, reverse=True)  # the order has not changed
    assert all((row["decision"] == "review") == (float(row["p_wrong"]) >= 0.5) for row in rows)
    assert all((row["suggested"] == row["other"]) == (row["decision"] == "review") for row in rows)
    precision, calls = true_precision(site, truth)
    counts = content(site)["counts"]
    assert calls >= 20
    assert counts["to_review"] == calls
    assert counts["precision_at_least"] <= precision + 0.05
    assert counts["said"] == "calls"
    wrong = sum(truth[row["site"], row["id"]] != row["given"] for row in rows)
    assert counts["wrong_at_least"] <= wrong <= counts["wrong_at_most"]
    assert content(site)["before_looks"]["counts"]["said"] == "cannot tell"
    assert "At least" in (site / "report.html").read_text(encoding="utf-8")


def test_where_nothing_is_wrong_the_top_is_not_worth_it(tmp_path):
    truth = make_audit(tmp_path / "audit", rates=(0.0, 0.0, 0.0))
    site = tmp_path / "audit" / "north"
    looked(site, truth)
    found = update_audit(site)
    assert found.looks["settled"] == "not worth it"
    assert {row["decision"] for row in lines(site / "audit.csv")} == {"keep"}
    assert found.sites[0]["said"] == "not worth it"
    assert found.sites[0]["to_review"] == 0
    assert found.looks["worth"] == 0


def test_what_stays_open_stays_cannot_tell(tmp_path):
    """Ten looks at a poor order."""
    truth = make_audit(tmp_path / "audit", labels=150, rates=(0.3, 0.3, 0.3), apart=1.0)
    site = tmp_path / "audit" / "north"
    looked(site, truth, total=10)
    found = update_audit(site)
    assert found.looks["settled"] == "open"
    rows = lines(site / "audit.csv")
    assert {row["decision"] for row in rows} == {"cannot tell"}
    assert {row["p_wrong"] for row in rows} == {""}
    assert "--anchor 40" in found.looks["said"]


def test_an_audit_with_calls_is_corrected_by_looks(tmp_path):
    """The audit called everything with a score above 0; without any wrong label nothing is left of that."""
    truth = make_audit(tmp_path / "audit", rates=(0.0, 0.0, 0.0), told=True)
    site = tmp_path / "audit" / "north"
    text = (site / "audit.csv").read_text(encoding="utf-8")
    assert "review" in text
    looked(site, truth)
    update_audit(site)
    assert {row["decision"] for row in lines(site / "audit.csv")} == {"keep"}


def test_an_update_can_be_repeated_with_more_looks_and_starts_from_the_audit(tmp_path):
    truth = make_audit(tmp_path / "audit")
    site = tmp_path / "audit" / "north"
    original = (site / "audit.csv").read_text(encoding="utf-8")
    looked(site, truth)
    once = update_audit(site)
    first = {name: (site / name).read_bytes() for name in ("audit.csv", "site.json", "report.html")}
    update_audit(site)
    assert {name: (site / name).read_bytes() for name in first} == first
    looked(site, truth, total=60)
    more = update_audit(site)
    assert more.looks["looked"] == 60
    assert more.looks["all"]["high"] - more.looks["all"]["low"] < once.looks["all"]["high"] - once.looks["all"]["low"]
    assert (site / "audit-before-looks.csv").read_text(encoding="utf-8") == original
    assert content(site)["before_looks"]["counts"]["said"] == "cannot tell"


def test_a_word_that_a_person_wrote_into_the_table_stays(tmp_path):
    truth = make_audit(tmp_path / "audit")
    site = tmp_path / "audit" / "north"
    looked(site, truth)
    update_audit(site)
    rows = lines(site / "audit.csv")
    text = (site / "audit.csv").read_text(encoding="utf-8").splitlines()
    text[1] = text[1].replace(",review,", ",accept,")
    (site / "audit.csv").write_text("\n".join(text) + "\n", encoding="utf-8")
    update_audit(site)
    after = lines(site / "audit.csv")
    assert after[0]["decision"] == "accept"
    assert after[1:] == rows[1:]


def test_the_whole_audit(tmp_path):
    folder = tmp_path / "audit"
    truth = make_audit(folder)
    looked(folder, truth)
    found = update_audit(folder)
    assert found.looks["of"] == "all sites"
    assert found.looks["looked"] == 30
    for line in lines(folder / "sites.csv"):
        site = folder / line["folder"]
        counts = content(site)["counts"]
        assert line["said"] == counts["said"] == "calls"
        assert int(line["to_review"]) == counts["to_review"] > 20
        assert counts["wrong_at_least"] is None  # fewer than 20 looks here
        assert "all sites together" in counts["reason"]
        assert line["wrong_at_least"] == ""
    claims = content(folder, "audit.json")["claims"]
    assert claims["calls"] == sum(line["to_review"] for line in found.sites)
    assert claims["said"] == "calls"
    assert content(folder, "audit.json")["before_looks"]["claims"]["said"] == "cannot tell"
    wrong = [true_precision(folder / name, truth) for name in ("north", "south", "east")]
    precision = sum(share * many for share, many in wrong) / sum(many for _, many in wrong)
    assert claims["precision_at_least"] <= precision + 0.05


def test_sites_with_20_looks_or_more_get_figures_of_their_own(tmp_path):
    folder = tmp_path / "audit"
    truth = make_audit(folder, rates=(0.6, 0.02, 0.02))
    for name in ("north", "south"):
        looked(folder / name, truth)
    update_audit(folder)
    sloppy, clean, third = (content(folder / name) for name in ("north", "south", "east"))
    assert (sloppy["looks"]["of"], clean["looks"]["of"], third["looks"]["of"]) == (
        "this site",
        "this site",
        "all sites",
    )
    assert sloppy["counts"]["wrong_at_least"] > clean["counts"]["wrong_at_most"]
    assert third["counts"]["wrong_at_least"] is None


def test_too_few_looks_are_refused(tmp_path):
    truth = make_audit(tmp_path / "audit")
    site = tmp_path / "audit" / "north"
    with pytest.raises(UsageError, match="looked at 0 of the labels drawn by lot; needed: 10"):
        update_audit(site)
    assert not (site / "audit-before-looks.csv").exists()
    looked(tmp_path / "audit", truth)
    with pytest.raises(UsageError, match="needed for one site: 20"):
        update_audit(site)


@pytest.mark.parametrize("how", [{"threshold": 0.0}, {"threshold": 1.5}, {"look_cost": 0.0}, {"budget": 0}])
def test_values_out_of_bounds_are_refused_before_anything_is_written(tmp_path, how):
    truth = make_audit(tmp_path / "audit")
    site = tmp_path / "audit" / "north"
    looked(site, truth)
    with pytest.raises(UsageError, match="allowed"):
        update_audit(site, **how)
    assert not (site / "audit-before-looks.csv").exists()


def test_a_budget_marks_the_first_labels_over_all_sites(tmp_path):
    folder = tmp_path / "audit"
    truth = make_audit(folder, rates=(0.6, 0.02, 0.02))
    looked(folder, truth)
    update_audit(folder, budget=100)
    rows = [row for name in ("north", "south", "east") for row in lines(folder / name / "audit.csv")]
    marked = [float(row["score"]) for row in rows if row["look"] == "yes"]
    others = [float(row["score"]) for row in rows if row["look"] == ""]
    assert len(marked) == 100
    assert min(marked) >= max(others) - 0.25  # labels of one bin are equal
    assert list(rows[0])[-1] == "look"
