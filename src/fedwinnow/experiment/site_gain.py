"""What does the federation give to each site? A finished run is compared with runs of the same scene and seed.

Three runs are played in the run's folder: every site alone, all sites together (FedAvg), and together without the
samples whose label the run called wrong. Each site's figures are those on its own test part.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.all_settings import is_number
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import with_test_part
from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError, UsageError, memory_in_words
from fedwinnow.experiment.gain_table import COLUMNS, Gain, SiteGain, gain_text, share_in
from fedwinnow.experiment.identity import identity_of, refuse_changed
from fedwinnow.experiment.play import Execution, Player, Watcher, play_stage
from fedwinnow.experiment.prepare import Mask, Stage, prepare
from fedwinnow.experiment.report.run_report import write_report
from fedwinnow.experiment.run_folder import GAIN, OWN_TEST, RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import config_of, own_test_table
from fedwinnow.files import text_of
from fedwinnow.metrics.task import Figure
from fedwinnow.models.make_model import in_turn
from fedwinnow.scene.scene import Scene

PLACE = "gain"  # the folder of the three runs, in the run's folder
# Of what a run is made besides its data, what the other runs do not share with it.
OF_THE_METHOD = ("method", "loss", "aggregator", "judge")

Watching = Callable[[str], AbstractContextManager[tuple[Watcher, ...]]]  # who is told of the rounds of a part
OwnTests = dict[str, tuple[str, int, Figure, Figure]]  # by site: what it was measured on, rows, and two accuracies


def unwatched(part: str) -> AbstractContextManager[tuple[Watcher, ...]]:
    """Nobody is told."""
    return nullcontext(())


def measure_gain(
    path: str | Path, execution: Execution | None = None, watching: Watching = unwatched, data: Dataset | None = None
) -> Gain:
    """Play the runs that a finished run is compared with, or the rest of them, and write gain.csv and the report.

    `data` is the data of a run that was started from Python with data in memory.
    """
    folder = RunFolder.existing(Path(path))
    execution = execution or Execution()
    with memory_in_words(), folder.locked():
        refuse_unfit(folder)
        scene = scene_of(folder, data)
        experiment = folder.experiment()
        stages = stages_of(experiment, scene, called_wrong(folder, scene))
        refuse_changed(folder, identity_of(stages["together"]), OF_THE_METHOD)
        own_tests = {"this_run": own_tests_of_run(folder, experiment, scene, execution)}
        for part, stage in stages.items():
            if stage.available:
                place = RunFolder(folder.path / PLACE / part.replace("_", "-"))
                with watching(part) as watchers:
                    play_part(stage, place, execution, watchers)
                own_tests[part] = read_own_tests(place)
        gain = gathered(stages["left_out"], called_wrong(folder, scene), own_tests)
        folder.write_text(GAIN, gain_text(gain))
        write_report(folder)
    return gain


# --- what cannot be compared ---------------------------------------------------------------------------------------


def refuse_unfit(folder: RunFolder) -> None:
    """Refuse a run that is not finished, and one whose samples are on other machines."""
    environment = folder.read_json("environment.json") or {}
    partition = str(folder.settings().get("partition", ""))
    if environment.get("backend") == "flower" or partition == "sites":
        raise UsageError(
            f"{folder.path}: this run went over a network, and its sites would have to train again; allowed: the "
            f"folder of a run that fedwinnow run has made on this machine."
        )
    status = (folder.read_json("summary.json") or {}).get("status", "unfinished")
    if status != "finished":
        raise UsageError(
            f"{folder.path}: this run is not finished ({status}). Continue it with its command and --resume, then "
            f"repeat this one."
        )


def scene_of(folder: RunFolder, data: Dataset | None) -> Scene:
    """The scene of the run with its data, which must be there and unchanged."""
    scene = Scene.load(folder.path)
    if data is not None:
        scene.attach(with_test_part(data, scene.data.test_share, scene.seed))
    if scene.dataset.test is None or not len(scene.dataset.test):
        raise DataError(
            f"{folder.path}: its data has no test part, so nothing can be measured. Make a run with --test 0.2."
        )
    return scene


def called_wrong(folder: RunFolder, scene: Scene) -> Mask:
    """Which labels the run's own verdicts called wrong; a sample without a verdict was not called wrong."""
    path = folder.path / "verdicts.npz"
    p_wrong = read_npz(path, ("p_wrong",)).get("p_wrong")
    if p_wrong is None or p_wrong.shape != scene.given.shape or not np.issubdtype(p_wrong.dtype, np.floating):
        raise DataError(f"{path}: not the verdicts of this run, one number per sample. Play the run again with --redo.")
    return np.asarray(p_wrong > 0.5)


# --- the three runs ------------------------------------------------------------------------------------------------


def stages_of(experiment: Experiment, scene: Scene, called: Mask) -> dict[str, Stage]:
    """The stages of the runs to compare with: the same scene, model, rounds, settings of training and seed."""
    models = in_turn(experiment.model) if experiment.model is not None else ()
    if len(models) > 1:
        raise UsageError(
            f"the sites of this run have models of different kinds ({experiment.model}), which cannot be averaged, so "
            f"there is nothing to compare with; allowed: a run with one kind of model."
        )
    if experiment.start is not None:
        raise UsageError(
            f"this run began with the trained model of {experiment.start}, and a site alone cannot begin with it; "
            f"allowed: a run without --start."
        )
    # Public samples from other data play no part here; those from the test part must stay out of it.
    public = experiment.public if is_number(experiment.public) else None
    plain = dataclasses.replace(experiment, method="fedavg", scene=None, public=public, memorisation_every=0)
    # There are as many models as sites, so they are measured once, at the end; none of them leaves its site.
    alone = dataclasses.replace(plain, method="local", eval_every=max(experiment.rounds, 1), privacy=None)
    return {
        "alone": prepare(alone, scene),
        "together": prepare(plain, scene),
        "left_out": prepare(plain, scene, called),
    }


def play_part(stage: Stage, place: RunFolder, execution: Execution, watchers: tuple[Watcher, ...]) -> None:
    """Play one of the runs, or the rest of it; one that was made of something else is made again."""
    carried_out = dataclasses.replace(execution, resume=True, redo=execution.anew or "stale")
    with place.locked():
        make_way(place, stage)
        play_stage(stage, place, carried_out, watchers)


def make_way(place: RunFolder, stage: Stage) -> None:
    """Clear a folder whose run has other settings or another scene, or has played more rounds."""
    if not place.holds_run:
        return
    more = place.settings().get("rounds", 0) > stage.experiment.rounds
    if more or place.differing(config_of(stage)) or place.other_scene(stage.scene.hash):
        place.clear()


# --- the figures ---------------------------------------------------------------------------------------------------


def own_tests_of_run(folder: RunFolder, experiment: Experiment, scene: Scene, execution: Execution) -> OwnTests:
    """The figures of the run itself; a run of an older version is measured now, with its last model."""
    if not (folder.path / OWN_TEST).exists():
        stage = prepare(experiment, scene)
        player = Player(stage, folder, execution, ())
        try:
            player.restore()
            own_test = player.evaluation.own_test(player.federation)
        finally:
            player.federation.backend.close()
        assert own_test is not None  # there is a test part
        folder.write_text(OWN_TEST, own_test_table(stage, own_test))
    return read_own_tests(folder)


def read_own_tests(folder: RunFolder) -> OwnTests:
    """own_test.csv of a run."""
    path = folder.path / OWN_TEST
    try:
        return {
            row["site"]: (
                row["part"],
                int(row["test_rows"]),
                share_in(row["accuracy"]),
                share_in(row["balanced_accuracy"]),
            )
            for row in csv.DictReader(io.StringIO(text_of(path)))
        }
    except (KeyError, ValueError, TypeError) as problem:
        raise DataError(
            f"{path}: not what a run has written ({type(problem).__name__}: {problem}). Restore the file, or delete it "
            f"and play the run again with --redo."
        ) from None


def gathered(stage: Stage, called: Mask, own_tests: dict[str, OwnTests]) -> Gain:
    """One line per site that holds samples."""
    scene = stage.scene
    missing: tuple[str, int, Figure, Figure] = ("", 0, None, None)
    counts = np.bincount(scene.holdings.client[called], minlength=scene.clients)
    of_run, sites = own_tests["this_run"], []
    for number in np.flatnonzero(scene.holdings.sizes).tolist():
        name = scene.site_names[number]
        mine: dict[str, Any] = {part: own_tests.get(part, {}).get(name, missing) for part in COLUMNS}
        sites.append(
            SiteGain(
                site=name,
                samples=int(scene.holdings.sizes[number]),
                called_wrong=int(counts[number]),
                trained_on_left=int(stage.sites.holdings.sizes[number]),
                test_rows=mine["this_run"][1],
                accuracy={part: found[2] for part, found in mine.items()},
                balanced_accuracy={part: found[3] for part, found in mine.items()},
            )
        )
    part = next((found[0] for found in of_run.values()), "")
    return Gain(part, tuple(sites))
