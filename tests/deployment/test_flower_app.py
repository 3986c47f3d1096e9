"""The Flower app gives the serial run's model; a grid in this process takes the place of Flower's."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import fedwinnow
from fedwinnow.cli import dispatch
from fedwinnow.errors import UsageError
from fedwinnow.scene.scene import Scene

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedwinnow.deployment.flower_app import NODE_CONFIG, client_app, server_app, site_of

ROOT = Path(__file__).parents[2]


class Room(Grid):
    """All nodes in this process: a message is answered by the app of its node at once."""

    def __init__(self, nodes: dict[int, dict[str, str]]) -> None:
        self.nodes = {
            node: Context(1, node, node_config=config, state=RecordDict(), run_config={})
            for node, config in nodes.items()
        }
        self.replies: dict[str, Message] = {}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower does before an app starts

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *words: Any, **more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names.append(f"message {len(self.replies)}")
            message.metadata.__dict__["_message_id"] = names[-1]  # as Flower's own grid does
            self.replies[names[-1]] = client_app(message, self.nodes[message.metadata.dst_node_id])
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies[name] for name in message_ids]


def test_the_app_gives_the_serial_runs_model(tmp_path: Path) -> None:
    settings = {"method": "fedrn", "model": "mlp:hidden=16", "rounds": 2, "epochs": 1, "participation": 1}
    settings["optimizer"] = "adamw:lr=0.01,schedule=cosine,warm_up=1"
    Scene.make("digits:train=120", clients=3, noise="constant:rate=0.3", seed=1).save(tmp_path / "scene")
    fedwinnow.run(scene=tmp_path / "scene", out=tmp_path / "serial", **settings)
    lines = [f"{key} = {value!r}" for key, value in (settings | {"scene": str(tmp_path / "scene")}).items()]
    (tmp_path / "run.toml").write_text("\n".join(lines), encoding="utf-8")
    room = Room(
        {
            7: {"scene": str(tmp_path / "scene"), "clients": "0-1", "folder": str(tmp_path / "east")},
            9: {"scene": str(tmp_path / "scene"), "clients": "2", "folder": str(tmp_path / "west")},
        }
    )
    config = {"config": str(tmp_path / "run.toml"), "out": str(tmp_path / "network"), "sites": 2}
    server_app(room, Context(1, 0, node_config={}, state=RecordDict(), run_config=config))
    state = (tmp_path / "network" / "state.safetensors").read_bytes()
    assert state == (tmp_path / "serial" / "state.safetensors").read_bytes()
    assert (tmp_path / "west" / "ledger.jsonl").exists()


def test_a_node_bounds_what_others_learn_by_its_own_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = "data = 'digits:train=60'\nmethod = 'fedgr'\nmodel = 'linear'\nrounds = 1\nepochs = 1"
    (tmp_path / "run.toml").write_text(settings, encoding="utf-8")
    own = {"data": "digits:train=60", "yes": "true"}
    room = Room(
        {
            7: own | {"folder": str(tmp_path / "east"), "name": "east", "allow-exposure": "sample"},
            9: own | {"folder": str(tmp_path / "west"), "name": "west"},
        }
    )
    config = {"config": str(tmp_path / "run.toml"), "out": str(tmp_path / "network"), "sites": 2}
    server_app(room, Context(1, 0, node_config={}, state=RecordDict(), run_config=config))
    assert list(json.loads((tmp_path / "network" / "ledger.json").read_text())["sites"]) == ["east"]
    said = capsys.readouterr().out
    assert "error: this site does not take part: method 'fedgr' sends 'sample_loss'" in said
    assert "the run begins without west" in said
    lines = [json.loads(line) for line in (tmp_path / "west" / "ledger.jsonl").read_text().splitlines()]
    assert all(line["sent"] == {} and "samples" not in line["said"] for line in lines)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"data": "digits:train=60", "yes": "true", "allow-exposure": "all"},
            "allow-exposure all was given; allowed: masked, model, client, s",
        ),
        ({"data": "digits:train=60"}, "does not say what may be asked of this site; give policy"),
        ({"data": "digits:train=60", "yes": "perhaps"}, "yes = 'perhaps'; allowed: true or false"),
        ({"data": "digits:train=60", "yes": "true", "policy": "site.toml"}, "either a policy, or these"),
        ({"scene": "scene", "allow-exposure": "sample"}, "allow-exposure = 'sample' with a scene; allowed: with data"),
    ],
)
def test_a_bound_that_cannot_be_is_an_error_of_the_node(config: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        site_of(*(config.get(key, "") for key in NODE_CONFIG), 7)


def test_what_the_config_lacks_is_named() -> None:
    with pytest.raises(UsageError, match="'out'"):
        server_app(Room({}), Context(1, 0, node_config={}, state=RecordDict(), run_config={"config": "run.toml"}))


@pytest.mark.parametrize(
    ("key", "value", "allowed"), [("sites", "three", "a whole number above 0"), ("timeout", "1m", "a number above 0")]
)
def test_what_is_no_number_in_the_config_is_named(tmp_path: Path, key: str, value: str, allowed: str) -> None:
    (tmp_path / "run.toml").write_text("data = 'digits'", encoding="utf-8")
    config = {"config": str(tmp_path / "run.toml"), "out": str(tmp_path / "run"), "sites": 2} | {key: value}
    with pytest.raises(UsageError, match=f"{key} = '{value}'; allowed: {allowed}"):
        server_app(Room({}), Context(1, 0, node_config={}, state=RecordDict(), run_config=config))


def test_the_example_names_the_apps() -> None:
    example = tomllib.loads((ROOT / "examples/deploy/flower-app/pyproject.toml").read_text(encoding="utf-8"))
    assert example["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "fedwinnow.deployment.flower_app:server_app",
        "clientapp": "fedwinnow.deployment.flower_app:client_app",
    }


def table_of(path: Path, rows: dict[str, int]) -> str:
    """A table with so many rows of each class, easy to tell apart, and the spec that reads it."""
    lines = ["size,colour,kind"]
    for place, (kind, count) in enumerate(rows.items()):
        lines += [f"{place + 0.01 * number},{-place - 0.01 * number},{kind}" for number in range(count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"csv:path={path},label=kind,schema={path.parent / 'schema.json'}"


@pytest.mark.parametrize("method", ["winnow", "fednoro"])
def test_a_site_with_few_samples_is_absent_and_keeps_its_verdict(tmp_path: Path, method: str, capsys: Any) -> None:
    own = table_of(tmp_path / "own.csv", {"a": 10, "b": 10})
    assert (
        dispatch(["schema", "--data", f"csv:path={tmp_path}/own.csv,label=kind", "--out", f"{tmp_path}/schema.json"])
        == 0
    )
    held = {"east": {"a": 9, "b": 8}, "west": {"a": 9, "b": 2}, "tiny": {"a": 3, "b": 1}}
    data = {name: table_of(tmp_path / f"{name}.csv", rows) for name, rows in held.items()}
    nodes = {
        place: {"data": data[name], "name": name, "folder": str(tmp_path / name), "yes": "1"}
        for place, name in enumerate(held)
    }
    lines = [f"data = {own!r}", f"method = '{method}'", "rounds = 3", "epochs = 1", "model = 'linear'"]
    (tmp_path / "run.toml").write_text("\n".join(lines), encoding="utf-8")
    config = {"config": str(tmp_path / "run.toml"), "out": str(tmp_path / "run"), "sites": 3}
    server_app(Room(nodes), Context(1, 0, node_config={}, state=RecordDict(), run_config=config))
    assert "absent, with fewer samples than the least count: tiny" in capsys.readouterr().out
    run_folder = tmp_path / "run"
    summary = json.loads((run_folder / "summary.json").read_text())
    assert (summary["status"], summary["absent"]) == ("finished", ["tiny"])
    assert tomllib.loads((run_folder / "config.toml").read_text())["least_count"] == 5
    assert json.loads((run_folder / "ledger.json").read_text())["sites"].keys() == {"east", "west"}
    said = "".join(path.read_text() for path in (tmp_path / "tiny").rglob("ledger.jsonl"))
    assert {json.loads(line)["kind"] for line in said.splitlines()} == {"hello", "finish"}
    assert all(json.loads(line)["sent"] == {} for line in said.splitlines())
    assert len((tmp_path / "tiny" / "audit.csv").read_text().splitlines()) == 5
