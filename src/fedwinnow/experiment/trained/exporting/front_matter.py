"""The YAML at the top of a model card, as the model hubs read it."""

from __future__ import annotations

import json
from typing import Any

from fedwinnow.data.input_form import InputForm
from fedwinnow.experiment.trained.exporting.input_description import TASKS

LIBRARIES = {"torch": "pytorch", "onnx": "onnx", "safetensors": "fedwinnow"}
METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced_accuracy", "macro_f1": "f1"}


def front_matter(facts: dict[str, Any], form: InputForm) -> str:
    """The block between two lines of dashes."""
    task = TASKS[form.kind]
    found: dict[str, Any] = {
        "library_name": LIBRARIES[facts["format"]],
        "pipeline_tag": task,
        "tags": ["federated-learning", "label-noise", "fedwinnow", facts["method"]["name"]],
    }
    if facts["scores"]:
        found["metrics"] = [METRICS[score["name"]] for score in facts["scores"]]
        data = facts["data"]["name"]
        result = {"task": {"type": task}, "dataset": {"name": data, "type": data}, "metrics": metrics_of(facts)}
        found["model-index"] = [{"name": f"{facts['method']['name']} on {data}", "results": [result]}]
    return "---\n" + "\n".join(yaml_lines(found)) + "\n---\n"


def metrics_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The scores of this model, and the means of the last rounds."""
    found = []
    for score in facts["scores"]:
        name = score["name"].replace("_", " ")
        found.append({"type": METRICS[score["name"]], "name": f"{name}, last round", "value": round(score["last"], 6)})
        if score["mean"] is not None:
            told = f"{name}, mean of the last {score['rounds']} measured rounds"
            found.append({"type": METRICS[score["name"]], "name": told, "value": round(score["mean"], 6)})
    return found


def yaml_lines(value: Any) -> list[str]:
    """Tables, lists and plain values as lines of YAML; texts are quoted as in JSON, which YAML reads too."""
    if isinstance(value, dict):
        found = []
        for key, inner in value.items():
            if isinstance(inner, dict | list):
                found += [f"{key}:", *(f"  {line}" for line in yaml_lines(inner))]
            else:
                found.append(f"{key}: {json.dumps(inner)}")
        return found
    found = []
    for one in value:
        lines = yaml_lines(one) if isinstance(one, dict | list) else [json.dumps(one)]
        found += [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]
    return found
