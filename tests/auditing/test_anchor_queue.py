"""What the page is told in a look by lot, and which labels the queue shows."""

from __future__ import annotations

import json

import pytest

from auditing_material import lines
from fedwinnow.auditing.looks import read_looks
from fedwinnow.auditing.reviewing.anchor_queue import AnchorQueue
from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
from fedwinnow.errors import UsageError
from looks_material import make_audit, write_table


@pytest.fixture
def made(tmp_path):
    return tmp_path / "audit", make_audit(tmp_path / "audit")


def decide_truly(queue, truth, item):
    site, _, sample = item["id"].rpartition("/")
    label = truth[site or "north", sample]
    if label == item["given"]:
        queue.decide(item["id"], "keep")
    else:
        queue.decide(item["id"], "other", label)


def test_the_page_gets_neither_score_nor_suggestion(made):
    folder, _ = made
    queue = AnchorQueue(folder / "north", "anna", 30)
    state = queue.state()
    assert state["blind"]
    assert len(state["queue"]) == 15
    assert set(state["queue"][0]) == {"id", "given", "picture", "decision", "others"}
    text = json.dumps(state["queue"])
    assert "suggested" not in text
    assert "score" not in text
    sample = queue.sample(state["queue"][0]["id"])
    assert (sample["given"], sample["suggested"]) == ([], [])
    with pytest.raises(UsageError, match="not a decision; allowed: keep, other, skip"):
        queue.decide(state["queue"][0]["id"], "accept")


def test_the_order_on_the_page_tells_nothing(made):
    folder, _ = made
    queue = AnchorQueue(folder, "anna", 200)
    score = {
        f"{name}/{row['id']}": float(row["score"])
        for name in ("north", "south", "east")
        for row in lines(folder / name / "audit.csv")
    }
    shown = [score[item["id"]] for item in queue.state()["queue"]]
    ranks = [sorted(shown).index(one) for one in shown]
    mean = sum(abs(place - rank) for place, rank in enumerate(ranks)) / len(ranks)
    assert mean == pytest.approx(len(ranks) / 3, rel=0.2)  # of an order by lot


def test_the_next_step_appears_when_the_first_is_done_and_figures_follow(made):
    folder, truth = made
    queue = AnchorQueue(folder, "anna", 30)
    first = queue.state()
    assert first["looks"]["settled"] is None
    for item in first["queue"]:
        decide_truly(queue, truth, item)
    second = queue.state()
    assert len(second["queue"]) == 30
    assert second["looks"]["looked"] == 15
    assert second["looks"]["total"] == 30
    for item in second["queue"][15:]:
        decide_truly(queue, truth, item)
    done = queue.state()
    assert done["looks"]["looked"] == 30
    assert done["looks"]["settled"] == "a list"
    assert "further looks" in done["looks"]["worth_in_words"]
    assert sum(len(read_looks(folder / name)) for name in ("north", "south", "east")) == 30


def test_a_second_reviewer_sees_the_same_labels_and_nothing_of_the_first(made):
    folder, truth = made
    anna = AnchorQueue(folder / "north", "anna", 30)
    for _ in range(2):
        for item in anna.state()["queue"]:
            if item["decision"] is None:
                decide_truly(anna, truth, item)
    ben = AnchorQueue(folder / "north", "ben", 30)
    state = ben.state()
    assert [item["id"] for item in state["queue"]] == [item["id"] for item in anna.state()["queue"]]
    assert all(item["decision"] is None and item["others"] == [] for item in state["queue"])
    assert ben.undo() is None


def test_undo_takes_back_a_look_and_no_other_decision(made):
    folder, _ = made
    chosen = ReviewQueue(folder / "north", "anna", first=5)
    chosen.decide(next(iter(chosen.rows)), "keep")
    queue = AnchorQueue(folder / "north", "anna", 30)
    name = next(name for name in queue.rows if name not in chosen.rows)
    queue.decide(name, "keep")
    again = AnchorQueue(folder / "north", "anna", 30)
    assert again.undo() == name
    assert again.undo() is None
    assert len(lines(folder / "north" / "decisions.csv")) == 1


@pytest.mark.parametrize("total", [0, 1, -3, 10**6])
def test_a_number_of_looks_that_makes_no_sense_is_refused(made, total):
    with pytest.raises(UsageError, match="--anchor"):
        AnchorQueue(made[0] / "north", "anna", total)
    assert not (made[0] / "north" / "looks.csv").exists()


# --- which labels a plain review shows -------------------------------------------------------------------------------


def test_the_first_labels_are_shown_where_nothing_is_called(made):
    folder, _ = made
    assert ReviewQueue(folder / "north", "anna").state()["queue"] == []
    queue = ReviewQueue(folder / "north", "anna", first=7)
    assert list(queue.rows) == [row["id"] for row in lines(folder / "north" / "audit.csv")[:7]]
    assert queue.state()["queue"][0]["p"] is None
    assert queue.state()["queue"][0]["suggested"] != queue.state()["queue"][0]["given"]
    with pytest.raises(UsageError, match="--first 0"):
        ReviewQueue(folder / "north", "anna", first=0)


def test_all_sites_are_shown_in_one_order(made):
    folder, _ = made
    queue = ReviewQueue(folder, "anna", first=20)
    scores = [float(row["score"]) for row in queue.rows.values()]
    assert scores == sorted(scores, reverse=True)
    assert len({name.split("/")[0] for name in queue.rows}) > 1
    name = next(name for name in queue.rows if name.startswith("south/"))
    queue.decide(name, "accept")
    assert [row["id"] for row in lines(folder / "south" / "decisions.csv")] == [name.removeprefix("south/")]
    assert queue.undo() == name


def test_marked_labels_are_shown_instead_of_called_ones(made):
    folder, _ = made
    path = folder / "north" / "audit.csv"
    rows = lines(path)
    write_table(
        path, [*rows[0], "look"], [[*row.values(), "yes" if place < 4 else ""] for place, row in enumerate(rows)]
    )
    assert list(ReviewQueue(folder / "north", "anna").rows) == [row["id"] for row in rows[:4]]
