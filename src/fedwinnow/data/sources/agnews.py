"""AG News: short news texts in four classes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.data.published_files import PublishedFile, missing_line
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import hash_of_files
from fedwinnow.data.tokens import token_ids
from fedwinnow.errors import DataError
from fedwinnow.options import option

URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
PUBLISHER = "Xiang Zhang's collection of text sets (a copy on GitHub, https://github.com/mhjabreel/CharCnn_Keras)"
FOLDERS = ("agnews", "ag_news", "ag_news_csv")
TRAIN = PublishedFile(
    "train.csv", f"{URL}/train.csv", PUBLISHER, "md5:b1a00f826fdfbd249f79597b59e1dc12", folders=FOLDERS
)
TEST = PublishedFile("test.csv", f"{URL}/test.csv", PUBLISHER, "md5:d52ea96a97a2d943681189a97654912d", folders=FOLDERS)


@dataclass(frozen=True)
class AgNews(Source):
    """Titles and first sentences of news in four classes, as token ids."""

    name: ClassVar[str] = "agnews"
    citation: ClassVar[str] = (
        "X. Zhang, J. Zhao and Y. LeCun: Character-level Convolutional Networks for Text Classification. NeurIPS 2015."
    )
    licence: ClassVar[str] = "non-commercial use, as the collector of the news asks"
    classes: ClassVar[int] = 4
    train_samples: ClassVar[int] = 120000
    test_samples: ClassVar[int] = 7600
    class_names: ClassVar[tuple[str, ...]] = ("World", "Sports", "Business", "Sci/Tech")

    length: int = option(64, "How many words of a text are kept; shorter texts are filled up.", at_least=1)
    vocabulary: int = option(20000, "How many token ids there are; a word's id is a hash of it.", at_least=2)

    def missing(self) -> list[str]:
        return [missing_line(file) for file in (TRAIN, TEST) if file.find() is None]

    def load(self) -> Dataset:
        paths = [TRAIN.fetch(), TEST.fetch()]
        return Dataset(
            name=self.name,
            kind="tokens",
            class_names=self.class_names,
            train=self.part(paths[0]),
            test=self.part(paths[1]),
            vocabulary=self.vocabulary,
            hashed_words=True,
            source_hash=hash_of_files(paths),
        )

    def part(self, path: Path) -> Samples:
        """One file: a row is the class from 1 to 4, the title and the text."""
        labels, texts = [], []
        try:
            with path.open(encoding="utf-8-sig", newline="") as stream:
                rows = csv.reader(stream)
                for row in filter(None, rows):
                    if len(row) != 3 or row[0].strip() not in ("1", "2", "3", "4"):
                        found = ",".join(row)[:60]
                        raise DataError(
                            f"{path}, line {rows.line_num}: '{found}' was found; needed: 1 to 4,title,text."
                        )
                    labels.append(int(row[0]) - 1)
                    texts.append(f"{row[1]} {row[2]}")
        except (OSError, UnicodeDecodeError, csv.Error) as problem:
            raise DataError(f"{path} cannot be read ({problem}).") from problem
        truth = np.array(labels, dtype=np.int64)
        tokens = token_ids(texts, self.length, self.vocabulary)
        return Samples(Resident(tokens), truth, np.arange(len(truth)), true=truth)
