"""The pixels of DICOM files as 8-bit images: values in their unit, seen through one or several windows."""

from __future__ import annotations

import logging
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.source_files import ALWAYS_ALLOWED, MOST_TIMES
from fedwinnow.errors import DataError, FedwinnowError, UsageError, missing_extra, unknown

Pixels = NDArray[np.uint8]
Values = NDArray[np.float64]

# Centre and width in Hounsfield units, as radiologists use them for CT.
WINDOWS = {
    "brain": (40.0, 80.0),
    "subdural": (80.0, 200.0),
    "stroke": (40.0, 40.0),
    "bone": (600.0, 2800.0),
    "lung": (-600.0, 1500.0),
    "mediastinum": (50.0, 350.0),
    "abdomen": (60.0, 400.0),
    "liver": (30.0, 150.0),
    "angio": (300.0, 600.0),
    "spine": (50.0, 250.0),
}
VIEW = "view"  # among the roles of a data set: how its files became images
OWN = "file"  # the window that stands in the file
NUMBER = r"[+-]?\d{1,6}(?:\.\d{1,6})?"
CENTRE_AND_WIDTH = re.compile(rf"({NUMBER})/({NUMBER})")
MOST_WINDOWS = 16
MOST_PIXELS = 2 * 10**8  # of one frame: the largest radiographs have a fifth of this
FRAMES = ("first", "middle", "last")
DEFLATED = "1.2.840.10008.1.2.1.99"


@dataclass(frozen=True)
class DicomView:
    """How files become images: through which windows, and which frame of several."""

    windows: tuple[tuple[float, float] | None, ...]  # centre and width; None: the file's own
    frame: str | None = None  # first, middle, last or a number from 1; None: files have one frame

    @staticmethod
    @cache
    def read(text: str) -> DicomView:
        """The view that `text_of` wrote."""
        windows, _, frame = text.partition(" frame ")
        return DicomView(windows_in(windows), frame or None)


def view_text(windows: str, frame: str | None) -> str:
    """A view as a text that fits into a file name and a cache key, checked."""
    windows_in(windows)
    if frame is not None and frame not in FRAMES and not (re.fullmatch(r"[1-9]\d{0,5}", frame)):
        raise UsageError(f"frame={frame} was given; allowed: {', '.join(FRAMES)}, or a number from 1.")
    return windows + (f" frame {frame}" if frame else "")


def windows_in(text: str) -> tuple[tuple[float, float] | None, ...]:
    """The windows of an option: names or CENTER/WIDTH, several joined by +."""
    names = text.split("+")
    if len(names) > MOST_WINDOWS:
        raise UsageError(f"window={text} has {len(names)} windows; allowed: at most {MOST_WINDOWS}.")
    return tuple(one_window(name.strip()) for name in names)


def one_window(name: str) -> tuple[float, float] | None:
    """A window by its name, or by its centre and width."""
    if name == OWN:
        return None
    if name in WINDOWS:
        return WINDOWS[name]
    found = CENTRE_AND_WIDTH.fullmatch(name)
    if found is None:
        raise UsageError(f"{unknown('window', name, [*WINDOWS, OWN])} Or write CENTER/WIDTH, for example 40/80.")
    if not float(found[2]) >= 1:
        raise UsageError(f"window={name} was given; allowed: a width of at least 1.")
    return float(found[1]), float(found[2])


# --- opening -------------------------------------------------------------------------------------------------------


@cache
def package() -> Any:
    """pydicom, or the error that says how to get it; its warnings may quote what stands in a file, so they are off."""
    try:
        import pydicom
        import pydicom.pixels
    except ImportError:
        raise missing_extra("dicom", "reading DICOM files") from None
    warnings.filterwarnings("ignore", module="pydicom")
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    return pydicom


@contextmanager
def quietly(path: str | Path) -> Iterator[None]:
    """Errors of ours in place of those of the package, whose texts may quote what stands in a file about a patient."""
    try:
        yield
    except FedwinnowError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.") from None
    except Exception as problem:  # pydicom and the codecs raise nearly anything on a broken file
        raise DataError(f"{path}: not a readable DICOM file ({type(problem).__name__}). Export it again.") from None


def open_file(path: str | Path, tags: list[str] | None = None) -> Any:
    """The data set in a file; with `tags` only these, without pixels."""
    pydicom = package()
    refuse_deflated_bomb(Path(path))
    try:
        return pydicom.dcmread(path, stop_before_pixels=tags is not None, specific_tags=tags)
    except pydicom.errors.InvalidDicomError:
        raise DataError(
            f"{path}: not a DICOM file (the letters DICM are missing after its first 128 bytes). Remove it, or export "
            "it again."
        ) from None


def refuse_deflated_bomb(path: Path) -> None:
    """Refuse a file whose deflated content would fill the memory; pydicom would unpack it whole."""
    with path.open("rb") as stream:
        beginning = stream.read(1024)
        if DEFLATED.encode() not in beginning:
            return
        from pydicom.filereader import read_file_meta_info

        if str(read_file_meta_info(path).get("TransferSyntaxUID", "")) != DEFLATED:
            return
        size = path.stat().st_size
        allowed = max(ALWAYS_ALLOWED, MOST_TIMES * size)
        stream.seek(0)
        content = stream.read()
    # The deflated part follows the group 0002, whose length stands in its first element.
    start = 132 + 12 + int.from_bytes(content[140:144], "little")
    inflating, total = zlib.decompressobj(-zlib.MAX_WBITS), 0
    rest = content[start:]
    while rest and not inflating.eof:
        total += len(inflating.decompress(rest, 1 << 24))
        rest = inflating.unconsumed_tail
        if total > allowed:
            raise DataError(f"{path}: more than {allowed / 1e9:.3g} GB would come out of {size / 1e6:.3g} MB.")


# --- pixels --------------------------------------------------------------------------------------------------------


def pixels_of(path: str | Path, view: DicomView) -> Pixels:
    """The image of a file, (height, width, channels): a channel per window, or three for a coloured file."""
    with quietly(path):
        content = open_file(path)
        return rendered(path, content, view)


def rendered(path: str | Path, content: Any, view: DicomView) -> Pixels:
    """The image of an opened file."""
    check_pixels(path, content)
    place = frame_place(path, content, view)
    array = decoded(path, content, place)
    kind = str(content.get("PhotometricInterpretation", "MONOCHROME2"))
    if array.ndim == 3 or kind == "PALETTE COLOR":
        return coloured(path, content, array, view)
    values = in_units(content, array, place)
    if not np.isfinite(values).all():
        raise DataError(f"{path}: has values that are not finite. Export it again.")
    outside = padding_in(content, array)
    channels = [seen_through(content, values, window, place, outside) for window in view.windows]
    image = np.stack(channels, axis=-1)
    image = 255 - image if kind == "MONOCHROME1" else image
    image[outside] = 0
    return np.asarray(image, np.uint8)


def check_pixels(path: str | Path, content: Any) -> None:
    """Refuse a file without an image, and one that states an impossible size."""
    height, width = content.get("Rows"), content.get("Columns")
    if not any(name in content for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise DataError(f"{path}: holds no image ({modality_of(content)}). Remove it from the labels.")
    if not height or not width:
        raise DataError(f"{path}: does not say how many rows and columns its image has. Export it again.")
    if height * width * int(content.get("SamplesPerPixel", 1)) > MOST_PIXELS:
        raise DataError(f"{path}: states an image of {height} x {width} pixels; allowed: {MOST_PIXELS} in all.")


def modality_of(content: Any) -> str:
    """What kind of file it is, in two letters that say nothing about a patient."""
    found = str(content.get("Modality", ""))
    return f"its modality is {found}" if re.fullmatch(r"[A-Z]{2,16}", found) else "its modality is not known"


def frame_place(path: str | Path, content: Any, view: DicomView) -> int:
    """Which frame is used, counted from 0."""
    frames = int(content.get("NumberOfFrames", None) or 1)
    if frames < 1:
        raise DataError(f"{path}: states {frames} frames. Export it again.")
    if view.frame is None and frames > 1:
        raise DataError(
            f"{path}: has {frames} frames; choose one with frame=, a number from 1 to {frames} or {', '.join(FRAMES)}."
        )
    if view.frame is None or view.frame in FRAMES:
        return {None: 0, "first": 0, "middle": frames // 2, "last": frames - 1}[view.frame]
    if int(view.frame) > frames:
        raise DataError(f"{path}: has {frames} frame{'s' * (frames > 1)}, but frame={view.frame} was asked for.")
    return int(view.frame) - 1


def decoded(path: str | Path, content: Any, place: int) -> NDArray[Any]:
    """The stored numbers of one frame; colours as red, green and blue."""
    pixels = package().pixels
    syntax = content.file_meta.get("TransferSyntaxUID", None)
    if syntax is None:
        raise DataError(f"{path}: does not say how it is stored (no transfer syntax). Export it again.")
    if syntax.is_compressed and not syntax.is_deflated:
        try:
            ready = pixels.get_decoder(syntax).is_available
        except NotImplementedError:
            ready = False
        if not ready:
            raise DataError(
                f"{path}: is compressed as {syntax.name}, which nothing installed here can read. Export it without "
                "compression, or install pylibjpeg with its plugins."
            )
    try:
        array = np.asarray(pixels.pixel_array(content, index=place))
    except Exception as problem:
        raise DataError(
            f"{path}: its pixels cannot be read ({type(problem).__name__}): they are cut off, or not stored as "
            f"{syntax.name}. Export it again."
        ) from None
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or not array.size:
        raise DataError(f"{path}: its image has the shape {array.shape}; allowed: grey, or red, green and blue.")
    return array


def coloured(path: str | Path, content: Any, array: NDArray[Any], view: DicomView) -> Pixels:
    """A coloured image in 8 bits; windows are for grey values."""
    if any(window is not None for window in view.windows) or len(view.windows) > 1:
        raise DataError(f"{path}: is a coloured image, for which a window has no meaning. Leave window= out.")
    if array.ndim == 2:
        array = package().pixels.apply_color_lut(array, content)
        return np.asarray(array >> 8 if array.dtype.itemsize > 1 else array, np.uint8)
    shift = max(int(content.get("BitsStored", 8)) - 8, 0)
    return np.asarray(array >> shift, np.uint8)


def in_units(content: Any, array: NDArray[Any], place: int) -> Values:
    """The stored numbers in their unit: rescaled by slope and intercept, or by the table of the file."""
    frame = of_frame(content, place, "PixelValueTransformationSequence")
    if frame is not None and "RescaleSlope" in frame:
        return array * float(frame.RescaleSlope) + float(frame.get("RescaleIntercept", 0))
    return np.asarray(package().pixels.apply_modality_lut(array, content), np.float64)


def padding_in(content: Any, array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which stored numbers fill the image where nothing was measured; they are black, and no grey value."""
    bounds = [content.get(name) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    signed, bits = bool(content.get("PixelRepresentation")), int(content.get("BitsAllocated") or 16)
    least, most = (None if bound is None or bound == "" else whole(bound, signed, bits) for bound in bounds)
    if least is None:
        return np.zeros(array.shape, np.bool_)
    most = least if most is None else most
    return np.asarray((array >= min(least, most)) & (array <= max(least, most)))


def whole(value: Any, signed: bool, bits: int = 16) -> int:
    """A whole number of a tag whose kind depends on that of the pixels."""
    if isinstance(value, bytes):
        return int.from_bytes(value, "little", signed=signed)
    number = int(value)
    return number - (1 << bits) if signed and number >= 1 << (bits - 1) else number


def of_frame(content: Any, place: int, sequence: str) -> Any:
    """What a file of several frames says about one of them, or about all; None where it says nothing."""
    groups = content.get("PerFrameFunctionalGroupsSequence") or []
    for group in [*list(groups)[place : place + 1], *(content.get("SharedFunctionalGroupsSequence") or [])]:
        if group.get(sequence):
            return group[sequence].value[0]
    return None


def seen_through(
    content: Any, values: Values, window: tuple[float, float] | None, place: int, outside: NDArray[np.bool_]
) -> Values:
    """Grey values from 0 to 255."""
    function = "LINEAR"
    if window is None:
        said = of_frame(content, place, "FrameVOILUTSequence") or content
        if content.get("VOILUTSequence"):
            return through_table(content, values)
        centres, widths = (as_numbers(said.get(name)) for name in ("WindowCenter", "WindowWidth"))
        if not centres or not widths or not widths[0] >= 1:
            return stretched(values, outside)
        window, function = (centres[0], widths[0]), str(said.get("VOILUTFunction", "LINEAR") or "LINEAR")
    return windowed(values, *window, function)


def through_table(content: Any, values: Values) -> Values:
    """Grey values by the table that the file states in place of a window (PS3.3, C.11.2.1.1)."""
    said = content.VOILUTSequence[0]
    signed = bool((values < 0).any())  # the first value is stored like the pixels after rescaling
    entries, first, bits = (whole(said.LUTDescriptor[which], which == 1 and signed) for which in range(3))
    entries = entries or 1 << 16
    found = said.LUTData
    if isinstance(found, bytes):
        found = np.frombuffer(found, "<u2" if len(found) >= 2 * entries else "u1")
    table = np.asarray(found, np.float64)[:entries]
    if len(table) < entries or not 8 <= bits <= 16:
        raise ValueError("a table of grey values that is not as long as it says")
    places = np.clip(np.rint(values) - first, 0, entries - 1).astype(np.int64)
    return np.asarray(np.floor(np.clip(table[places] / ((1 << bits) - 1), 0, 1) * 255 + 0.5))


def as_numbers(value: Any) -> list[float]:
    """One or several numbers of a tag."""
    if value is None or value == "":
        return []
    return [float(one) for one in (value if isinstance(value, (list, tuple)) or hasattr(value, "append") else [value])]


def windowed(values: Values, centre: float, width: float, function: str = "LINEAR") -> Values:
    """The standard's formulas (PS3.3, C.11.2.1.2) with the output range 0 to 255."""
    if function == "SIGMOID":
        grey = 255 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))
    elif function == "LINEAR_EXACT":
        grey = ((values - centre) / width + 0.5) * 255
    elif width == 1:
        grey = np.where(values > centre - 0.5, 255.0, 0.0)
    else:
        grey = ((values - (centre - 0.5)) / (width - 1) + 0.5) * 255
    return np.floor(np.clip(grey, 0, 255) + 0.5)


def stretched(values: Values, outside: NDArray[np.bool_]) -> Values:
    """The whole range of an image that states no window, without what fills it where nothing was measured."""
    inside = values[~outside]
    least, most = (float(inside.min()), float(inside.max())) if inside.size else (0.0, 0.0)
    if not most > least:
        return np.zeros_like(values)
    return np.floor(np.clip((values - least) / (most - least), 0, 1) * 255 + 0.5)
