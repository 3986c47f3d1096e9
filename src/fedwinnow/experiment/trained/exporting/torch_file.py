"""model.pt2: the model and its preprocessing as a program of torch.export, without Python code."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwinnow.errors import RunError, UsageError
from fedwinnow.experiment.trained.exporting.probe import Ask
from fedwinnow.experiment.trained.trained_model import TrainedModel

FILE = "model.pt2"
SOURCE_NOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "custom")


def standalone(trained: TrainedModel) -> nn.Module:
    """A copy of the answering module whose tensors are its own, not views of the run's vectors."""
    with torch.no_grad():
        module = copy.deepcopy(trained.module)
        for parameter in module.parameters():
            parameter.data, parameter.grad = parameter.data.clone(), None
        for layer in module.modules():
            for name, buffer in list(layer.named_buffers(recurse=False)):
                setattr(layer, name, buffer.clone())
    return module.eval()


def exported_program(trained: TrainedModel, example: Tensor, file: str) -> Any:
    """The program; the number of samples stays free, and notes on the lines of source are removed."""
    batch = torch.export.Dim("n", min=2 if trained.by_batch else 1)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(standalone(trained), (example,), dynamic_shapes=({0: batch},), strict=False)
    except Exception as problem:  # of a user's own module: anything
        raise cannot(file, problem) from problem
    program.example_inputs = None
    for graph_module in program.graph_module.modules():
        for node in graph_module.graph.nodes if isinstance(graph_module, torch.fx.GraphModule) else ():
            for name in SOURCE_NOTES:
                node.meta.pop(name, None)
    return program


def cannot(file: str, problem: Exception) -> UsageError:
    """The error for a model that cannot become a graph."""
    told = " ".join(str(problem).split())[:160]
    return UsageError(
        f"this model cannot be written as {file} ({type(problem).__name__}: {told}). Use --format safetensors."
    )


def write(trained: TrainedModel, example: Tensor, path: Path, description: str) -> None:
    """Write the program, with preprocessing.json inside."""
    program = exported_program(trained, example, path.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path, extra_files={"preprocessing.json": description})
    found, wanted = torch.export.load(path).state_dict, standalone(trained).state_dict()
    if different := [name for name, value in wanted.items() if name not in found or not found[name].equal(value)]:
        raise RunError(f"{path.name} was not written right: its '{different[0]}' differs. Nothing was exported.")


def asked(path: Path) -> Ask:
    """The file as a function, loaded as a user would load it."""
    module = torch.export.load(path).module()

    def ask(x: Tensor) -> Tensor:
        with torch.inference_mode():
            found: Tensor = module(x)
        return found.float()

    return ask
