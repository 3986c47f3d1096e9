"""An audit over the network is the audit of one machine: the same files at every site, byte for byte."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import fedwinnow
from auditing_material import SPEC, write_patients
from fedwinnow.auditing.audit import AuditSettings, perform
from fedwinnow.cli import main
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.settings import Experiment
from fedwinnow.scene.scene import Scene
from over_network import Cast, free_port

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from fedwinnow.deployment.certificates import make_certificates

SITES = ("site-a", "site-b", "site-c")
SETTINGS = {"rounds": 6, "epochs": 3, "optimizer": "sgd:lr=0.1", "batch_size": 16, "seed": 1}
WAIT = ("--heartbeat", 1800)  # nobody is lost because the machine is busy


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, ("localhost", "127.0.0.1"), SITES)
    return folder


def words(settings: dict[str, object]) -> list[object]:
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", value)]


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_frozen_scene_gives_the_files_of_one_machine_byte_for_byte(keys: Path, tmp_path: Path) -> None:
    scene = tmp_path / "scene"
    table = write_patients(tmp_path / "patients.csv", rows=400)
    Scene.make(SPEC.format(path=table), clients=4, seed=1, test=0.0).save(scene)
    port = free_port()
    with Cast(tmp_path) as cast:
        cast.start(
            *("serve", "serve", "--audit", "--scene", scene, "--sites", 3, "--tls", keys, "--port", port),
            *("--out", "network", "--budget", 20, *words(SETTINGS)),
        )
        for name, clients in zip(SITES, ("0-1", "2", "3"), strict=True):
            cast.start(
                *(name, "join", "--server", f"localhost:{port}", "--tls", keys / name, "--scene", scene),
                *("--clients", clients, *WAIT),
            )
        one = perform(
            AuditSettings(
                Experiment(scene=scene, method="winnow:warm_up=0.5", participation=1.0, **SETTINGS), budget=20
            ),
            tmp_path / "one",
            Execution(),
        )
        for name in ("serve", *SITES):
            cast.ended(name)
    names = [line["folder"] for line in one.lines]
    away = [f"site-a/{names[0]}", f"site-a/{names[1]}", "site-b", "site-c"]
    for here, there in zip(names, away, strict=True):
        mine, theirs = tmp_path / "one" / here, tmp_path / "sites" / there
        assert (theirs / "audit.csv").read_bytes() == (mine / "audit.csv").read_bytes()
        ours, others = (json.loads((folder / "site.json").read_text()) for folder in (mine, theirs))
        assert {key: others[key] for key in ours} == ours
    network, local = (lines(tmp_path / where / "sites.csv") for where in ("network", "one"))
    assert [row | {"folder": ""} for row in local] == network
    assert sum(int(row["to_review"]) for row in network) > 0  # there was something to find


HOSPITALS = {"site-a": "north", "site-b": "south", "site-c": "a/../<b>east"}


def tables_of_hospitals(folder: Path) -> None:
    """A table per site, one of all sites together, one of the coordinator, and the schema of them all."""
    rows = lines(write_patients(folder / "patients.csv", rows=450))
    # Two rows of each patient, who must not be judged by models that know the other row.
    kept = ("patient", "diagnosis", "age", "pressure")
    tables: dict[str, list[dict[str, str]]] = {}
    for name, hospital in HOSPITALS.items():
        mine = [{column: row[column] for column in kept} for row in rows if row["hospital"] == hospital]
        # Nobody has the numbers of somebody at another site: copies there are held out together on one machine alone.
        tables[name] = [
            row | {"person": f"{name}-{number // 2}", "age": f"{float(row['age']) + 0.0001 * len(tables):.4f}"}
            for number, row in enumerate(mine)
        ]
    together = [row | {"hospital": name} for name, mine in tables.items() for row in mine]
    tables |= {"own": tables["site-a"][:30]}
    for name, content in (*tables.items(), ("all", together)):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(content[0]))
            writer.writeheader()
            writer.writerows(content)
    with pytest.raises(SystemExit) as ended:
        main(["schema", "--data", table_at(folder / "site-a.csv"), "--out", str(folder / "schema.json")])
    assert ended.value.code == 0


def table_at(path: Path, *more: str) -> str:
    return ",".join([f"csv:path={path}", "label=diagnosis", "id=patient", "group=person", *more])


def test_own_data_at_three_sites_gives_the_audit_of_one_table(keys: Path, tmp_path: Path) -> None:
    """With a least count of 0; numbers that are not told can give another, more cautious, conclusion."""
    tables_of_hospitals(tmp_path)
    port, schema = free_port(), f"schema={tmp_path / 'schema.json'}"
    with Cast(tmp_path) as cast:
        cast.start(
            *("serve", "serve", "--audit", "--data", table_at(tmp_path / "own.csv", schema), "--group", "person"),
            *("--sites", 3, "--tls", keys, "--port", port, "--out", "network", "--least-count", 0, *words(SETTINGS)),
        )
        for name in SITES:
            cast.start(
                *(
                    name,
                    "join",
                    "--server",
                    f"localhost:{port}",
                    "--tls",
                    keys / name,
                    *WAIT,
                    "--least-count",
                    0,
                    "--yes",
                ),
                *("--data", table_at(tmp_path / f"{name}.csv", schema)),
            )
        data = table_at(tmp_path / "all.csv", schema, "site=hospital")
        one = fedwinnow.audit(data=data, out=tmp_path / "one", encoder="none", **SETTINGS)
        for name in ("serve", *SITES):
            cast.ended(name)
    for name in SITES:
        mine, theirs = tmp_path / "one" / name, tmp_path / "sites" / name
        assert (theirs / "audit.csv").read_bytes() == (mine / "audit.csv").read_bytes()
        assert "</html>" in (theirs / "report.html").read_text(encoding="utf-8")
    assert sum(line["to_review"] for line in one.sites) > 0
    counts = lines(tmp_path / "network" / "sites.csv")
    assert [row | {"folder": ""} for row in lines(tmp_path / "one" / "sites.csv")] == counts
