"""The report of a site: one file that needs nothing else and trusts no text of a user."""

from __future__ import annotations

import json
import re

from auditing_material import SCRIPT, lines
from fedwinnow.auditing.audit_report import write_report

EAST = "a---b-east"


def rows_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="rows">(.*?)</script>', page, re.DOTALL)[1])


def test_no_text_of_a_user_becomes_markup(finished):
    page = (finished / EAST / "report.html").read_text(encoding="utf-8")
    assert SCRIPT not in page
    assert "<b>east" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert SCRIPT in rows_of(page)["classes"]


def test_it_needs_no_other_file_and_no_network(finished):
    page = (finished / "north" / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=[\"']?(?!data:)[a-z/.]", page)
    assert "http://" not in page
    assert "https://" not in page


def test_it_holds_every_label(finished):
    found = rows_of((finished / "north" / "report.html").read_text(encoding="utf-8"))
    audit = lines(finished / "north" / "audit.csv")
    assert [row[0] for row in found["rows"]] == [row["id"] for row in audit]
    assert [found["decisions"][row[5]] for row in found["rows"]] == [row["decision"] for row in audit]


def test_a_hundred_thousand_labels_are_one_page(audited):
    site = audited / "north"
    header, *rest = (site / "audit.csv").read_text(encoding="utf-8").splitlines()
    many = [f"north,s{number},well,well,-9.2,0.000100,keep,well,," for number in range(100_000)]
    (site / "audit.csv").write_text("\n".join([header, *rest, *many]) + "\n", encoding="utf-8")
    page = write_report(site).read_text(encoding="utf-8")
    assert len(rows_of(page)["rows"]) == 100_100
    assert len(page) < 10_000_000
    assert page.count("<figure>") <= 60
