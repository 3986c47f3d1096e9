"""DICOM files that tests make: small CT slices with names, ids and values that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What must never leave the files; each is looked for in everything that is written.
PLANTED = {
    "PatientName": "Mustermann^Erika",
    "PatientID": "KH-4711-GEHEIM",
    "PatientBirthDate": "19640812",
    "PatientAddress": "Heidestrasse 17",
    "InstitutionName": "Klinikum Nirgendwo",
    "ReferringPhysicianName": "Sauerbruch^Ferdinand",
    "AccessionNumber": "ACC99887766",
    "OtherPatientNames": "Gabler^Erika",
}
SECRETS = (
    "Mustermann",
    "KH-4711-GEHEIM",
    "19640812",
    "Heidestrasse",
    "Nirgendwo",
    "Sauerbruch",
    "ACC99887766",
    "Gabler",
)


def slice_file(
    path: Path, stored: NDArray[Any], patient: int = 0, study: str = "1", planted: bool = True, **tags: Any
) -> Path:
    """One file with these stored numbers; `tags` replace the usual ones, None removes one."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[str(path)])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    content = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    if planted:
        for tag, value in PLANTED.items():
            setattr(content, tag, value)
        content.PatientID = f"{PLANTED['PatientID']}-{patient}"
    else:
        content.PatientID = f"ID_{patient:08x}"
    content.StudyInstanceUID = f"1.2.3.{patient}.{study}"
    content.SOPClassUID, content.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    content.Modality = "CT"
    frames = stored.shape[0] if stored.ndim == 3 and "NumberOfFrames" in tags else None
    height, width = stored.shape[1:3] if frames else stored.shape[:2]
    content.Rows, content.Columns = height, width
    content.SamplesPerPixel, content.PhotometricInterpretation = 1, "MONOCHROME2"
    bits = stored.dtype.itemsize * 8
    content.BitsAllocated, content.BitsStored, content.HighBit = bits, bits, bits - 1
    content.PixelRepresentation = int(stored.dtype.kind == "i")
    content.RescaleSlope, content.RescaleIntercept = "1", "-1024"
    content.PixelData = stored.tobytes()
    for tag, value in tags.items():
        if value is None:
            delattr(content, tag)
        else:
            setattr(content, tag, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    content.save_as(path, enforce_file_format=True)
    return path


def hounsfield(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The stored numbers of these Hounsfield units, with the usual intercept."""
    return np.asarray(values + 1024, np.uint16)


def bleeding(kind: int, seed: int, side: int = 16) -> NDArray[np.uint16]:
    """A made-up slice: brain at 35 units with a spot of blood whose place tells the kind."""
    dice = np.random.default_rng(seed)
    values = dice.normal(35, 5, (side, side))
    row, column = divmod(kind, 3)
    spot = (
        slice(1 + row * side // 2, 1 + row * side // 2 + side // 3),
        slice(column * side // 3, (column + 1) * side // 3),
    )
    values[spot] = dice.normal(75, 5, values[spot].shape)
    return hounsfield(values)


def scans(root: Path, samples: int = 24, classes: int = 2, planted: bool = True, **tags: Any) -> Path:
    """A folder of slices, two of each patient, and labels.csv beside it."""
    rows = ["id,label,site"]
    for number in range(samples):
        patient, path = number // 2, root / "scans" / f"{number:03}.dcm"
        slice_file(path, bleeding(patient % classes, number), patient, "1", planted, **tags)
        rows.append(f"{number:03},{'abcdefgh'[patient % classes]},{'south' if number % 8 > 3 else 'north'}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root / "scans"
