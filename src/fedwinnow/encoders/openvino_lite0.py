"""EfficientNet-Lite0 computed by OpenVINO: the same network, faster on processors, with other last bits than torch.

The graph is written out here, layer by layer. OpenVINO's own converter is not used, because it reports its use to its
makers; the part that reports is kept out when OpenVINO is loaded.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedwinnow.encoders.encoder import Matrix
from fedwinnow.encoders.lite0 import InvertedBlock, Lite0, SameConvolution, missing_pixels
from fedwinnow.errors import missing_extra

# One thread per batch, because whole batches are shared out to threads; single precision, also where the processor
# knows a shorter one.
ONE_THREAD = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def openvino_engine(network: Lite0, batch: int, side: int) -> tuple[Callable[[Matrix], Matrix], str]:
    """A function from up to so many centred images (n, 3, side, side) to features, and the name of what computes it."""
    try:
        with without_reports():
            import openvino
            from openvino import opset13
    except ImportError:
        raise missing_extra("openvino", "engine=openvino") from None

    images = opset13.parameter([batch, 3, side, side], np.float32)
    maps, size = images, side
    for layer in network.layers:
        maps, size = layer_of(opset13, layer, maps, size)
    features = opset13.reduce_mean(maps, np.array([2, 3]), keep_dims=False)
    compiled = openvino.Core().compile_model(openvino.Model([features], [images]), "CPU", ONE_THREAD)
    own = threading.local()  # a request must not be used by two threads at once

    def encode(pixels: Matrix) -> Matrix:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        full = np.concatenate([pixels, np.zeros((batch - len(pixels), *pixels.shape[1:]), np.float32)])
        own.request.infer({0: full})
        return np.array(own.request.get_output_tensor(0).data[: len(pixels)], np.float32)

    return encode, f"openvino {openvino.__version__}"


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """Load OpenVINO without the package by which it reports its use, unless the program has loaded that already."""
    name = "openvino_telemetry"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # importing it then fails, and OpenVINO does without
    try:
        yield
    finally:
        del sys.modules[name]


def layer_of(ops: Any, layer: Any, maps: Any, size: int) -> tuple[Any, int]:
    """A layer behind these maps, and the side of what comes out."""
    if isinstance(layer, SameConvolution):
        return convolution_of(ops, layer, maps, size)
    assert isinstance(layer, InvertedBlock)
    found, side = maps, size
    for inner in layer.layers:
        found, side = layer_of(ops, inner, found, side)
    return (ops.add(found, maps) if layer.adds else found), side


def convolution_of(ops: Any, layer: SameConvolution, maps: Any, size: int) -> tuple[Any, int]:
    """One convolution with its bias, and ReLU6 where it follows."""
    missing = missing_pixels(size, layer.kernel, layer.stride)
    before, after = [missing // 2] * 2, [-(-missing // 2)] * 2
    weight, strides, dilations = layer.weight.contiguous().numpy(), [layer.stride] * 2, [1, 1]
    if layer.groups > 1:
        filters = ops.constant(weight[:, None])  # groups, outputs, inputs, height, width
        found = ops.group_convolution(maps, filters, strides, before, after, dilations)
    else:
        found = ops.convolution(maps, ops.constant(weight), strides, before, after, dilations)
    found = ops.add(found, ops.constant(layer.bias.numpy().reshape(1, -1, 1, 1)))
    return (ops.clamp(found, 0.0, 6.0) if layer.bounded else found), -(-size // layer.stride)
