"""Looks: labels by lot, what people say of them, and what counts."""

from __future__ import annotations

import numpy as np
import pytest

from auditing_material import lines
from fedwinnow.auditing.audit_folder import Previews, SiteVerdict, write_site
from fedwinnow.auditing.decisions import Decision, save_decision
from fedwinnow.auditing.looks import Survey, draw_looks, findings_of, read_looks, tally_of
from fedwinnow.auditing.statements import Statement
from fedwinnow.errors import DataError, UsageError
from fedwinnow.testing import toy_data
from looks_material import answer, make_audit, write_table


@pytest.fixture
def made(tmp_path):
    return tmp_path / "audit", make_audit(tmp_path / "audit")


def look_at_all(folder, truth, **how):
    """Everybody who is drawn is answered, until nothing more is drawn."""
    survey = Survey(folder)
    while draw_looks(survey, 30):
        for site in survey.sites:
            for name in read_looks(site.folder):
                answer(site.folder, site.name, name, truth, **how)
    return survey


def test_half_of_the_looks_come_first_one_per_stratum_and_on_disk_before_they_are_shown(made):
    folder, _ = made
    survey = Survey(folder / "north")
    assert draw_looks(survey, 30) == 15
    rows = lines(folder / "north" / "looks.csv")
    assert len(rows) == 15
    assert {row["step"] for row in rows} == {"1"}
    assert {row["drawn_from"] for row in rows} == {"site"}
    drawn = np.bincount([int(row["stratum"]) - 1 for row in rows], minlength=len(survey.strata))
    assert drawn.max() - drawn.min() <= 1
    assert drawn.min() >= 1
    for row in rows:  # the stratum in the file is that of the score
        place = survey.sites[0].by_id[row["id"]]
        assert survey.places[0][place] == int(row["stratum"]) - 1


def test_the_rest_follow_when_the_first_are_decided_where_it_is_open(made):
    folder, truth = made
    survey = Survey(folder / "north")
    draw_looks(survey, 30)
    names = list(read_looks(folder / "north"))
    for name in names[:-1]:
        answer(folder / "north", "north", name, truth)
    assert draw_looks(survey, 30) == 0  # one is not decided
    save_decision(folder / "north", names[-1], "anna", Decision.now(names[-1], "anna", "skip", ""))
    assert draw_looks(survey, 30) == 15
    assert draw_looks(survey, 30) == 0
    second = [look for look in read_looks(folder / "north").values() if look.step == 2]
    per_stratum = np.bincount([look.stratum - 1 for look in second], minlength=len(survey.strata))
    assert per_stratum.max() >= 3  # not spread over all strata alike
    assert per_stratum[-1] == 0  # nobody doubts the calmest labels
    assert len(read_looks(folder / "north")) == 30


def test_the_same_labels_are_drawn_every_time_and_others_with_another_seed(made, tmp_path):
    folder, _ = made
    draw_looks(Survey(folder / "north"), 30)
    make_audit(tmp_path / "again")
    draw_looks(Survey(tmp_path / "again" / "north"), 30)
    assert list(read_looks(folder / "north")) == list(read_looks(tmp_path / "again" / "north"))
    site = tmp_path / "again" / "south"
    draw_looks(Survey(site), 30)
    text = (site / "site.json").read_text(encoding="utf-8")
    (site / "site.json").write_text(text.replace('"seed": 5', '"seed": 6'), encoding="utf-8")
    before = list(read_looks(site))
    (site / "looks.csv").unlink()
    draw_looks(Survey(site), 30)
    assert list(read_looks(site)) != before


def test_the_lot_does_not_know_the_score(made):
    """The first of a stratum are not preferred: the mean rank inside the strata is in the middle."""
    folder, _ = made
    survey = Survey(folder)
    draw_looks(survey, 400)
    ranks = []
    for number, site in enumerate(survey.sites):
        for name in read_looks(site.folder):
            place = site.by_id[name]
            score = site.score[place]
            mates = np.concatenate(
                [s.score[survey.places[k] == survey.places[number][place]] for k, s in enumerate(survey.sites)]
            )
            ranks.append((mates > score).mean() + (mates == score).mean() / 2)
    assert len(ranks) == 200
    assert np.mean(ranks) == pytest.approx(0.5, abs=3 * 0.29 / np.sqrt(200))


def test_labels_are_drawn_over_all_sites_in_proportion(tmp_path):
    make_audit(tmp_path / "audit")
    survey = Survey(tmp_path / "audit")
    assert draw_looks(survey, 600) == 300
    per_site = [len(read_looks(site.folder)) for site in survey.sites]
    assert sum(per_site) == 300
    assert min(per_site) > 70
    assert {look.drawn_from for site in survey.sites for look in read_looks(site.folder).values()} == {"audit"}


def test_only_labels_by_lot_count(made):
    folder, truth = made
    survey = Survey(folder / "north")
    draw_looks(survey, 30)
    drawn = read_looks(folder / "north")
    chosen = [row["id"] for row in lines(folder / "north" / "audit.csv") if row["id"] not in drawn][:40]
    for name in chosen:
        answer(folder / "north", "north", name, truth)
    assert tally_of(survey).total == 0
    first = next(iter(drawn))
    answer(folder / "north", "north", first, truth)
    before = tally_of(survey)
    assert before.total == 1
    answer(folder / "north", "north", first, truth, turned=True)  # the same person thinks again
    after = tally_of(survey)
    assert after.total == 1
    assert after.found.sum() == 1 - before.found.sum()
    save_decision(folder / "north", first, "anna", Decision.now(first, "anna", "skip", ""))
    assert tally_of(survey).total == 0


def test_two_people_are_one_look_and_where_they_differ_it_counts_half(made):
    folder, truth = made
    survey = look_at_all(folder / "north", truth)
    one = tally_of(survey)
    looks = list(read_looks(folder / "north"))
    for name in looks:
        answer(folder / "north", "north", name, truth, reviewer="ben")
    agreed = tally_of(survey)
    assert (agreed.total, agreed.both, agreed.differ) == (30, 30, 0)
    assert agreed.found.tolist() == one.found.tolist()
    for name in looks[:8]:
        answer(folder / "north", "north", name, truth, reviewer="ben", turned=True)
    differed = tally_of(survey)
    assert (differed.total, differed.differ) == (30, 8)
    assert differed.found.sum() == pytest.approx(
        one.found.sum() + sum(0.5 if truth["north", name] == given_of(folder, name) else -0.5 for name in looks[:8])
    )
    assert differed.error > agreed.error == 0.05
    narrow, wide = (findings_of(survey, tally).together.first(60) for tally in (agreed, differed))
    assert wide.high - wide.low > narrow.high - narrow.low


def given_of(folder, name):
    return next(row["given"] for row in lines(folder / "north" / "audit.csv") if row["id"] == name)


def test_the_figures_hold_against_the_truth(made):
    folder, truth = made
    survey = look_at_all(folder, truth)
    found = findings_of(survey)
    order = sorted(
        ((-score, site.name, row) for site in survey.sites for score, row in zip(site.score, site.rows, strict=True)),
        key=lambda one: one[0],
    )
    wrong = [truth[name, row["id"]] != row["given"] for _, name, row in order]
    for one in found.together.lists():
        assert one.low - 0.05 <= np.mean(wrong[: one.labels]) <= one.high + 0.05


def test_a_sloppy_site_gets_figures_of_its_own_from_20_looks_on(tmp_path):
    folder = tmp_path / "audit"
    truth = make_audit(folder, rates=(0.6, 0.02, 0.02))
    for name in ("north", "south"):
        look_at_all(folder / name, truth)
    survey = Survey(folder)
    found = findings_of(survey)
    sloppy, clean, third = found.by_site[1], found.by_site[2], found.by_site[0]
    assert [site.name for site in survey.sites] == ["east", "north", "south"]
    assert third is None
    assert sloppy.first(400).low > clean.first(400).high
    assert sloppy.first(400).mean == pytest.approx(0.6, abs=0.2)
    assert found.of(0) is found.together


def test_an_audit_without_scores_is_refused(made):
    folder, _ = made
    rows = lines(folder / "north" / "audit.csv")
    header = [name for name in rows[0] if name != "score"]
    write_table(folder / "north" / "audit.csv", header, [[row[name] for name in header] for row in rows])
    with pytest.raises(DataError, match=r"score|earlier version"):
        Survey(folder / "north")


HEAD = "id,stratum,step,drawn_from\n"


@pytest.mark.parametrize(
    "text",
    ["id,stratum\na,1\n", f"{HEAD}north1,x,1,site\n", f"{HEAD}north1,1,1,moon\n", f"{HEAD}nobody,1,1,site\n"],
)
def test_a_damaged_file_of_looks_is_named(made, text):
    folder, _ = made
    (folder / "north" / "looks.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"looks\.csv"):
        tally_of(Survey(folder / "north"))


def test_a_score_that_is_no_number_is_named(made):
    folder, _ = made
    path = folder / "north" / "audit.csv"
    first = lines(path)[0]
    path.write_text(path.read_text(encoding="utf-8").replace(first["score"], "high", 1), encoding="utf-8")
    with pytest.raises(DataError, match="needed: a number"):
        Survey(folder / "north")


def test_nothing_judged_is_nothing_to_draw(tmp_path):
    make_audit(tmp_path / "audit", labels=9)
    path = tmp_path / "audit" / "north" / "audit.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("cannot tell", "too few"), encoding="utf-8")
    with pytest.raises(UsageError, match="no label was judged"):
        Survey(tmp_path / "audit" / "north")
    survey = Survey(tmp_path / "audit")  # the other sites have some
    assert draw_looks(survey, 30) == 15
    assert draw_looks(survey, 2000) == 0


def test_a_large_site_has_previews_of_labels_that_are_drawn(tmp_path):
    """Only the 60 most suspicious samples have a preview for other reasons."""
    labels = 3000
    luck = np.random.RandomState(0)
    score = np.sort(luck.normal(-3, 3, labels))[::-1].copy()
    data = toy_data(samples=labels)
    found = SiteVerdict(
        site="north", class_names=("a", "b"), rows=np.arange(labels) % len(data.train), ids=np.arange(labels),
        given=np.zeros(labels, np.int64), suggested=np.ones(labels, np.int64), score=score,
        p_wrong=np.full(labels, np.nan), decision=np.full(labels, "cannot tell"),
        compared={place: [[], []] for place in range(60)}, statement=Statement("cannot tell", "Hard to say."),
    )  # fmt: skip
    facts = {"data": {"name": "toy", "kind": "rows", "source": ""}, "seed": 3}
    write_site(tmp_path, found, Previews.of(data), facts)
    survey = Survey(tmp_path)
    assert draw_looks(survey, 200) == 100
    shown = {*survey.sites[0].facts["texts"], *survey.sites[0].facts["pictures"]}
    assert set(read_looks(tmp_path)) <= shown
    assert len(shown) < labels / 3
