"""Readers of TensorFlow: tf.data's file datasets, tf.io and gfile, which call pread from C++."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from reader_kit import Transcript, files_of, reader


def import_tensorflow() -> Any:
    """Imports TensorFlow and returns it. TensorFlow will use only the CPU, and will not write
    messages about the machine."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    # oneDNN would write a message with a time stamp to standard error at every start.
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    # No reader needs Keras, which takes a second to import.
    sys.modules["keras"] = None  # type: ignore[assignment]
    # The garbage collector is off during the import. The objects that the import makes stay in use,
    # so the collector would find no garbage, and would only take time.
    gc.disable()
    import tensorflow

    gc.enable()
    return tensorflow


def _elements(dataset: Any) -> list[bytes]:
    """Returns the strings of a dataset. Takes them from the dataset in batches, because taking a
    single string takes longer than reading it."""
    return [each for batch in dataset.batch(64).as_numpy_iterator() for each in batch]


@reader
def tf_training(root: Path, out: Transcript) -> None:
    """Trains a network and records its weights. They must be equal, to the last bit, with and
    without the library. This reader must be the first of its process, because TensorFlow accepts
    some of its settings only before other operations have run."""
    from train_tensorflow import train

    train(import_tensorflow(), root, out)


@reader
def tf_tfrecord(root: Path, out: Transcript) -> None:
    """Reads with TFRecordDataset: one file after the other with two buffer sizes, and all files
    interleaved."""
    tf = import_tensorflow()
    names = [str(path) for path in files_of(root, "tfrecord/*")]
    for name in names:
        for buffer in (None, 10_000):
            records = _elements(tf.data.TFRecordDataset(name, buffer_size=buffer))
            out.data(Path(name), b"".join(records), records=len(records), buffer=buffer)
    mixed = tf.data.Dataset.from_tensor_slices(names).interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=2, deterministic=True
    )
    records = _elements(mixed.prefetch(4))
    out.data("interleaved", b"".join(records), records=len(records))


@reader
def tf_lines(root: Path, out: Transcript) -> None:
    """Reads with TextLineDataset and FixedLengthRecordDataset."""
    tf = import_tensorflow()
    for path in files_of(root, "text/*"):
        lines = _elements(tf.data.TextLineDataset(str(path)))
        out.data(path, b"\n".join(lines), lines=len(lines))
    for path in files_of(root, "raw/*"):
        fixed = tf.data.FixedLengthRecordDataset(
            str(path), 1024, header_bytes=3, footer_bytes=(path.stat().st_size - 3) % 1024
        )
        records = _elements(fixed)
        out.data(path, b"".join(records), records=len(records))


@reader
def tf_read_file(root: Path, out: Transcript) -> None:
    """Reads with tf.io.read_file, in a map with parallel calls, and decodes the images."""
    tf = import_tensorflow()
    names = [str(p) for p in files_of(root, "images/*/*.jpg", "edge/*", "links/to_*e")]
    files = tf.data.Dataset.from_tensor_slices(names).map(tf.io.read_file, num_parallel_calls=2)
    for name, data in zip(names, files.as_numpy_iterator(), strict=True):
        out.data(Path(name), data)
        if name.endswith(".jpg"):
            out.data(Path(name), tf.io.decode_jpeg(data).numpy().tobytes(), way="pixels")
    listed = tf.data.Dataset.list_files(f"{root}/images/*/*.jpg", shuffle=False)
    out.line(
        "list_files", names=[os.path.relpath(n.decode(), root) for n in listed.as_numpy_iterator()]
    )


@reader
def tf_gfile(root: Path, out: Transcript) -> None:
    """Uses gfile: read, seek, stat, glob, walk, exists, and copy, which calls sendfile."""
    tf = import_tensorflow()
    gfile = tf.io.gfile
    with tempfile.TemporaryDirectory() as folder:
        for path in files_of(root, "edge/*", "tfrecord/*", "text/lines_0*"):
            with gfile.GFile(str(path), "rb") as file:
                out.data(path, file.read(), size_told=file.size())
                file.seek(min(10, file.size()))
                out.data(path, file.read(1000), place=file.tell())
            status = gfile.stat(str(path))
            out.line(path, length=status.length, mtime_ns=status.mtime_nsec)
            gfile.copy(str(path), f"{folder}/copy", overwrite=True)
            out.data(path, Path(folder, "copy").read_bytes(), way="copy")
    found = sorted(os.path.relpath(name, root) for name in gfile.glob(f"{root}/*/*_00*"))
    out.line("glob", found=found)
    for place, names, files in gfile.walk(str(root)):
        out.line(f"walk {os.path.relpath(place, root)}", names=sorted(names), files=sorted(files))
    out.line("exists", there=gfile.exists(f"{root}/edge"), gone=gfile.exists(f"{root}/edge/gone"))


@reader
def tf_cache(root: Path, out: Transcript) -> None:
    """Uses tf.data's cache in files outside the dataset. The first epoch writes the cache, and the
    second one reads it."""
    tf = import_tensorflow()
    names = [str(path) for path in files_of(root, "images/*/*_00*.jpg")]
    with tempfile.TemporaryDirectory() as folder:
        files = tf.data.Dataset.from_tensor_slices(names).map(tf.io.read_file)
        cached = files.cache(f"{folder}/cache")
        for epoch in range(2):
            data = list(cached.as_numpy_iterator())
            out.data("cache", b"".join(data), epoch=epoch, files=len(data))
