"""Readers of DALI: pipelines on the CPU, which map, read and list files from C++ threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reader_kit import Transcript, files_of, reader

BATCH = 8


def _run(define: Callable[[], Any], name: str, out: Transcript) -> None:
    """Runs a pipeline for a little more than one epoch. The operator that reads must have the name
    "reader"."""
    from nvidia.dali import pipeline_def

    pipeline = pipeline_def(define, batch_size=BATCH, num_threads=2, device_id=None)()
    pipeline.build()
    size = pipeline.reader_meta("reader")["epoch_size"]
    for batch in range(size // BATCH + 2):
        (samples, *more) = pipeline.run()
        for place in range(BATCH):
            labels = [int(each.at(place)[0]) for each in more]
            out.data(name, samples.at(place).tobytes(), batch=batch, place=place, labels=labels)


def _tfrecord(root: Path, out: Transcript, no_mapping: bool) -> None:
    from nvidia.dali import fn, tfrecord

    def define() -> Any:
        features = {"data": tfrecord.FixedLenFeature((), tfrecord.string, "")}
        return fn.readers.tfrecord(
            path=[str(path) for path in files_of(root, "examples/*.tfrecord")],
            index_path=[str(path) for path in files_of(root, "examples/*.idx")],
            features=features,
            dont_use_mmap=no_mapping,
            name="reader",
        )["data"]

    _run(define, "examples", out)


@reader
def dali_tfrecord_mapped(root: Path, out: Transcript) -> None:
    """Reads TFRecords through mappings."""
    _tfrecord(root, out, no_mapping=False)


@reader
def dali_tfrecord_read(root: Path, out: Transcript) -> None:
    """Reads TFRecords through stdio, without mappings."""
    _tfrecord(root, out, no_mapping=True)


@reader
def dali_files(root: Path, out: Transcript) -> None:
    """Reads whole files, which lie in one directory for each class. DALI lists the directories
    itself."""
    from nvidia.dali import fn

    files_of(root, "images/*/*.jpg")

    def define() -> Any:
        read = fn.readers.file(file_root=f"{root}/images", file_filters=["*.jpg"], name="reader")
        return tuple(read)

    _run(define, "images", out)
