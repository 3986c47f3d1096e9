"""The model of a run that is going on, for watchers: a copy, so that nothing that they do to it reaches the run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from fedwinnow.experiment.prepare import Stage, input_form
from fedwinnow.experiment.trained.answering_module import AnsweringModule
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.federation.host import Setup, new_model
from fedwinnow.federation.rounds import answering_models
from fedwinnow.federation.server import Server


class WatchedModel:
    """Made when a watcher first asks for a model; brought up to date after each round."""

    def __init__(self, stage: Stage, setup: Setup, server: Server) -> None:
        self.stage, self.setup, self.server = stage, setup, server

    @cached_property
    def trained(self) -> TrainedModel:
        """A model of its own for each model that answers; with an encoder that is no module, the heads alone."""
        stage = self.stage
        count = len(answering_models(stage.method, self.server))
        models = tuple(new_model(stage.sites.shape, self.setup) for _ in range(count))
        found = TrainedModel(Path(), input_form(stage), stage.method, models, None, encoding=stage.encoding)
        return found if found.has_whole_module else found.on_rows()

    def now(self) -> AnsweringModule | None:
        """The model as it is tested now, in eval mode; None where every site has its own."""
        if self.stage.method.own_models:
            return None
        payloads = answering_models(self.stage.method, self.server)
        if "trained" in vars(self) and len(self.trained.models) != len(payloads):
            del self.trained
        for model, payload in zip(self.trained.models, payloads, strict=True):
            model.load({key: value.clone() for key, value in payload.items()})
        module = self.trained.module
        module.eval()
        module.requires_grad_(False)
        return module
