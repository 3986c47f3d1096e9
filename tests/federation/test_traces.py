"""A stack trace tells what a method's author wants to know: whose client, when, and where in the method."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest

import fedwinnow
from fedwinnow.errors import RunError
from fedwinnow.testing import toy_data

ON_A_CLIENT = """
from fedwinnow.federation.method import Method


class Breaks(Method):
    \"\"\"Fails on the second client in the second round.\"\"\"

    name = "breaks"
    stages = ("warm up", "refine")

    def question(self, server):
        return ("warm up" if server.round == 1 else "refine"), "train"

    def objective(self, client, rows, x, y, got):
        return refined(client, super().objective(client, rows, x, y, got))


def refined(client, loss):
    if client.round == 2 and client.id == 1:
        raise ZeroDivisionError("nothing was refined")
    return loss
"""

ON_THE_SERVER = """
from fedwinnow.federation.method import Method


class Breaks(Method):
    \"\"\"Fails where replies are merged.\"\"\"

    name = "breaks"

    def merge(self, server, replies):
        for client, reply in replies:
            self.weigh({})

    def weigh(self, reply):
        return reply["nothing"]
"""


def failing_run(text: str, tmp_path: Path, backend: str = "serial") -> RunError:
    method = tmp_path / "breaks.py"
    method.write_text(text)
    settings = {"clients": 3, "participation": 1.0, "rounds": 3, "epochs": 1, "backend": backend}
    with pytest.raises(RunError) as caught:
        fedwinnow.run(data=toy_data(), method=str(method), out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    return caught.value


def functions_in(text: str) -> list[str]:
    """The functions of a traceback's frames, from the outermost to the innermost."""
    return re.findall(r"File .*, in (\S+)", text)


@pytest.mark.parametrize("backend", ["serial", "processes:workers=2"])
def test_an_error_on_a_client_begins_with_the_client_and_shows_its_frames_alone(backend: str, tmp_path: Path) -> None:
    said = str(failing_run(ON_A_CLIENT, tmp_path, backend))
    assert said.startswith("client 1 (client-1), round 2, stage 'refine', train: ZeroDivisionError: nothing was")
    assert functions_in(said)[0] == "train"
    assert functions_in(said)[-2:] == ["objective", "refined"]
    assert "host.py" not in said
    assert "merge" not in said


def test_the_servers_half_is_not_on_the_stack_of_a_clients_error(tmp_path: Path) -> None:
    problem = failing_run(ON_A_CLIENT, tmp_path)
    names = [frame.name for frame in traceback.extract_tb(problem.__traceback__)]
    assert names[-1] == "play_round"
    assert not {"merge", "exchanges", "deliver", "ask_and_merge"} & set(names)
    assert "".join(traceback.format_exception(problem)).count("Traceback") == 2  # ours, and the client's in the message


def test_an_error_of_the_servers_half_shows_the_methods_frames(tmp_path: Path) -> None:
    said = str(failing_run(ON_THE_SERVER, tmp_path))
    assert said.startswith("round 1, the server's half of breaks: KeyError: 'nothing'")
    assert functions_in(said)[-2:] == ["merge", "weigh"]
    assert "rounds.py" not in said
