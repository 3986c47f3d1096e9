"""The code and the data that the runs of a sweep would use now, looked up once for all runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fedwinnow.data.content_hash import Contents
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.errors import DataError, FedwinnowError
from fedwinnow.experiment.identity import Identity, code_in, data_in, staleness, stored_identity
from fedwinnow.experiment.prepare import scene_of
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.trusted_and_public import amount
from fedwinnow.federation.method import find_method

Seen = dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]]  # ids of objects -> the objects, and what was looked up


class Present:
    """The present code and data of experiments."""

    def __init__(self) -> None:
        self.found: Seen = {}

    def reason(self, folder: Path, experiment: Experiment) -> str | None:
        """Why the run in a folder is stale for this experiment; None if it is not."""
        place = RunFolder(folder)
        try:
            stored = stored_identity(place)
            now = {"code": {}, "data": {}} if stored is None else self.identity(experiment, stored)
            return staleness(place, now, experiment.rounds)
        except DataError as problem:  # a damaged folder
            return str(problem)

    def identity(self, experiment: Experiment, stored: Identity) -> Identity:
        """The identity of a run made now; data that is not on this machine counts as unchanged."""
        try:
            samples, public = self.data(experiment)
            found = {"data": data_in(samples, public), "encoder": self.encoder(experiment)}
        except FedwinnowError:
            found = {"data": stored["data"], "encoder": stored.get("encoder", {})}
        return {"code": self.code(experiment)} | found

    def code(self, experiment: Experiment) -> dict[str, Any]:
        """The user's code behind method, model, optimizer and encoder."""
        key = (experiment.method, experiment.model, experiment.optimizer, experiment.encoder)
        found: dict[str, Any] = self.once(key, lambda: code_in(experiment, find_method(experiment.method)))
        return found

    def data(self, experiment: Experiment) -> tuple[Contents, Contents | None]:
        """The contents of the data, and of public data from another source."""
        public = experiment.public
        other = None if amount(public) is not None else self.once((public,), lambda: load(public).known_contents())
        return self.once((experiment.data, experiment.scene), lambda: contents_of(experiment)), other

    def encoder(self, experiment: Experiment) -> dict[str, Any]:
        """The hash of the encoder's weights and settings; empty for a run without one."""
        spec = experiment.encoder
        if spec is None:
            return {}
        data = (experiment.data, experiment.scene)
        return {"hash": self.once((spec, *data), lambda: hash_of_encoder(spec, dataset_of(experiment)))}

    def once(self, key: tuple[Any, ...], look: Any) -> Any:
        """The result of `look`, computed once per key; the objects are kept, so that their ids stay unique."""
        numbers = tuple(one if isinstance(one, str) else id(one) for one in key)
        if numbers not in self.found:
            self.found[numbers] = (key, look())
        return self.found[numbers][1]


def hash_of_encoder(spec: Any, dataset: Dataset) -> str:
    """What stands for an encoder's weights and settings."""
    return DataEncoder.for_data(spec, dataset).opened.hash


def contents_of(experiment: Experiment) -> Contents:
    """The contents of an experiment's data, before samples are dealt to clients."""
    dataset = dataset_of(experiment)
    if dataset is experiment.data:  # as in a run: for arrays from a program, the arrays themselves count
        dataset = dataclasses.replace(dataset, contents=None)
    return dataset.known_contents()


def dataset_of(experiment: Experiment) -> Dataset:
    """An experiment's data, before samples are dealt to clients."""
    if experiment.scene is not None:
        return scene_of(experiment.scene).dataset
    return experiment.data if isinstance(experiment.data, Dataset) else load(experiment.data)
