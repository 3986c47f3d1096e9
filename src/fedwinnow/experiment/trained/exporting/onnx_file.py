"""model.onnx: the model and its preprocessing as one graph, for ONNX Runtime and others."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedwinnow.errors import missing_extra
from fedwinnow.experiment.trained.exporting.probe import Ask
from fedwinnow.experiment.trained.exporting.torch_file import cannot, exported_program
from fedwinnow.experiment.trained.trained_model import TrainedModel

FILE = "model.onnx"


def refuse_without_exporter() -> None:
    """Refuse before anything is loaded if the packages that write ONNX are missing."""
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxscript") is None:
        raise missing_extra("onnx", "--format onnx")


def write(trained: TrainedModel, example: Tensor, path: Path, description: str) -> None:
    """Write the graph, with preprocessing.json among its metadata."""
    import onnx

    program = exported_program(trained, example, path.name)
    try:
        with quiet(), torch.no_grad():
            made = torch.onnx.export(
                program, (example,), dynamo=True, input_names=["x"], output_names=["logits"], verbose=False
            )
    except Exception as problem:  # an operation that ONNX lacks; the exporter has many errors for that
        raise cannot(path.name, problem) from problem
    assert made is not None
    model = made.model_proto
    forget_source(model)
    name_batch(model.graph)
    model.producer_name, model.doc_string = "fedwinnow", ""
    onnx.helper.set_model_props(model, {"preprocessing.json": description})
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def forget_source(message: Any) -> None:
    """Remove notes on the lines of source, which have paths of this machine, from a model and all its graphs."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for one in [value] if hasattr(value, "ListFields") else list(value):
                if hasattr(one, "ListFields"):
                    forget_source(one)


def name_batch(graph: Any) -> None:
    """Call the number of samples n instead of the exporter's symbol."""
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.shape.dim[0].dim_param:
            value.type.tensor_type.shape.dim[0].dim_param = "n"
    graph.ClearField("value_info")  # it repeats the symbol; readers work the shapes out again


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's own progress and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def asked(path: Path) -> Ask | None:
    """The file as a function of ONNX Runtime; None where that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # an operation that ONNX Runtime lacks; its errors have no common class
        raise cannot(path.name, problem) from problem
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0]).float()
