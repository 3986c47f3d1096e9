"""The server of the review page answers whoever has the token, and nobody else."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from urllib.parse import quote

import pytest

from auditing_material import SCRIPT
from fedwinnow.auditing.decisions import read_decisions
from fedwinnow.auditing.reviewing import review_queue as queue_module
from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
from fedwinnow.auditing.reviewing.review_server import LARGEST_REQUEST, ReviewServer
from fedwinnow.errors import DataError, RunError, UsageError


@pytest.fixture
def server(audited):
    with ReviewServer(ReviewQueue(audited / "north", "anna")) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def ask(server, path, body=None, *, token=True, content=None, **headers):
    """Status and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    usual = {"Host": server.hosts[0], **({"X-Token": server.token} if token else {})}
    if body is not None:
        usual |= {"Origin": f"http://{server.hosts[0]}", "Content-Type": "application/json"}
        content = json.dumps(body)
    sent = {name.replace("_", "-"): value for name, value in {**usual, **headers}.items() if value is not None}
    connection.request("GET" if content is None else "POST", path, content, sent)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def first(server) -> dict:
    return json.loads(ask(server, "/state")[1])["queue"][0]


def test_it_listens_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32


@pytest.mark.parametrize("path", ["/", "/state", "/app.js", "/app.css", "/sample?id=p0", "/picture?id=p0", "/nothing"])
def test_nothing_is_shown_without_the_token(server, path):
    assert ask(server, path, token=False)[0] == 403
    assert ask(server, path, X_Token="x" * 32)[0] == 403


@pytest.mark.parametrize("path", ["/decide", "/undo"])
def test_nothing_is_decided_without_the_token(server, path):
    assert ask(server, path, {}, token=False)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "", "127.0.0.1:80@evil.example"])
def test_other_hosts_are_refused(server, host):
    assert ask(server, "/state", Host=host)[0] == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", None])
def test_other_origins_are_refused(server, origin):
    item = first(server)
    assert ask(server, "/decide", {"id": item["id"], "decision": "accept"}, Origin=origin)[0] == 403
    assert read_decisions(server.queue.folder) == {}


def test_other_pages_are_refused(server):
    assert ask(server, "/state", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(server, "/state", Sec_Fetch_Site="same-site")[0] == 403


def test_a_decision_is_on_disk_when_it_is_answered_and_undo_takes_it_back(server):
    item = first(server)
    for decision, label in (("accept", item["suggested"]), ("keep", item["given"]), ("skip", "")):
        status, content, _ = ask(server, "/decide", {"id": item["id"], "decision": decision})
        assert status == 200
        assert json.loads(content)["queue"][0]["decision"] == {"decision": decision, "label": label}
        assert [one.label for one in read_decisions(server.queue.folder).values()] == [label]
    for left in ("keep", "accept", None):
        answer = json.loads(ask(server, "/undo", {})[1])
        assert answer["undone"] == item["id"]
        assert (answer["queue"][0]["decision"] or {}).get("decision") == left
    assert json.loads(ask(server, "/undo", {})[1])["undone"] is None


def test_undo_reaches_into_an_earlier_session(server):
    item = first(server)
    ask(server, "/decide", {"id": item["id"], "decision": "accept"})
    later = ReviewQueue(server.queue.folder, "anna")
    assert later.undo() == item["id"]
    assert read_decisions(server.queue.folder) == {}
    assert later.undo() is None


def test_another_label_must_be_a_class(server):
    item = first(server)
    assert ask(server, "/decide", {"id": item["id"], "decision": "other", "label": "nonsense"})[0] == 400
    assert ask(server, "/decide", {"id": item["id"], "decision": "other", "label": SCRIPT})[0] == 200


@pytest.mark.parametrize(
    "body",
    [{}, {"id": "p0"}, {"id": 3, "decision": "keep"}, {"id": "nobody", "decision": "keep"}, [], "text", None],
)
def test_strange_requests_are_refused_in_words(server, body):
    status, content, _ = ask(server, "/decide", body if body is not None else "")
    assert status == 400
    assert json.loads(content)["error"]


def test_requests_that_are_no_json_or_too_long(server):
    own = f"http://{server.hosts[0]}"
    for broken in ("{", "[" * (LARGEST_REQUEST // 2)):
        assert ask(server, "/decide", content=broken, Origin=own, Content_Type="application/json")[0] == 400
    assert ask(server, "/decide", content="{}", Origin=own, Content_Type="text/plain")[0] == 415
    assert ask(server, "/decide", content=" " * (LARGEST_REQUEST + 1), Origin=own)[0] == 413


@pytest.mark.parametrize("name", ["../site.json", "../../../../etc/passwd", "/etc/passwd", "site.json", "", "%2e%2e"])
def test_no_file_outside_the_previews_is_served(server, name):
    server.queue.site["pictures"] = {"p0": name}
    assert ask(server, f"/picture?id={quote(name)}")[0] == 404
    assert ask(server, "/picture?id=p0")[0] == 404


def test_a_link_among_the_previews_is_not_followed(server):
    previews = server.queue.folder / "previews"
    previews.mkdir()
    (previews / "000000.png").symlink_to(server.queue.folder / "site.json")
    server.queue.site["pictures"] = {"p0": "000000.png"}
    assert ask(server, "/picture?id=p0")[0] == 404


def test_answers_are_kept_from_other_pages_and_from_caches(server):
    headers = ask(server, f"/?token={server.token}", token=False)[2]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_texts_of_users_are_escaped_in_the_page(audited):
    with ReviewServer(ReviewQueue(audited / "a---b-east", "anna")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = ask(server, "/")[1].decode()
        server.shutdown()
    assert "<b>east" not in page
    assert "&lt;b&gt;east" in page


def test_the_word_of_another_shows_only_after_ones_own(server):
    item = first(server)
    ReviewQueue(server.queue.folder, "ben").decide(item["id"], "keep")
    assert first(server)["others"] == []
    ask(server, "/decide", {"id": item["id"], "decision": "accept"})
    assert first(server)["others"] == [{"reviewer": "ben", "decision": "keep", "label": item["given"]}]
    assert json.loads(ask(server, "/state")[1])["agreement"]["both"] == 1


def test_a_port_that_is_taken_is_an_error_in_words(server):
    with pytest.raises(UsageError, match="cannot be used"):
        ReviewServer(server.queue, server.server_port)


def test_a_folder_without_an_audit_is_an_error_in_words(tmp_path):
    with pytest.raises(DataError, match="not the folder of an audited site"):
        ReviewQueue(tmp_path, "anna")


def test_a_browser_that_hangs_up_is_no_news(server, capfd):
    for number in range(3):
        connection = socket.create_connection(server.server_address[:2])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not goodbye
        connection.sendall(b"GET / HTT"[: 3 * number + 1])
        connection.close()
    assert ask(server, "/state")[0] == 200
    assert capfd.readouterr().err == ""


def test_an_undo_that_could_not_be_saved_can_be_tried_again(server, monkeypatch):
    queue, item = server.queue, first(server)
    queue.decide(item["id"], "keep")
    queue.decide(item["id"], "skip")
    with monkeypatch.context() as broken:
        broken.setattr(
            queue_module, "save_decision", lambda *parts: (_ for _ in ()).throw(RunError("the disk is full"))
        )
        with pytest.raises(RunError, match="the disk is full"):
            queue.undo()
    assert queue.undo() == item["id"]
    assert [one.decision for one in read_decisions(queue.folder).values()] == ["keep"]


def test_the_page_is_told_which_samples_have_a_picture(server):
    server.queue.site["pictures"] = {first(server)["id"]: "000000.png"}
    assert [one["picture"] for one in json.loads(ask(server, "/state")[1])["queue"][:2]] == [True, False]
