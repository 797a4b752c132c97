"""The kinds of record files, the index of each kind, and the members of a sample in a tar."""

import io
import tarfile
from pathlib import Path

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.plan.builders import (
    PATTERNS,
    index_fixed,
    index_hdf5,
    index_tfrecord,
    index_webdataset,
)
from monarch_py.plan.index import Index

# Kinds of files, as `monarch plan index` names them.
KINDS = ("fixed", "hdf5", "tfrecord", "webdataset")


def indexed(
    path: Path,
    kind: str | None,
    dataset: str | None,
    fixed: tuple[int | None, int],
    patterns: tuple[str, ...],
) -> Index:
    """Returns the index of a file, or of a directory's files. Raises MonarchError if the path does
    not exist. Raises ConfigError if the kind is unknown, or if an argument that the kind needs is
    missing.

    fixed : (record_bytes, header_bytes), for the kind 'fixed'
    """
    if not path.exists():
        raise MonarchError(f"{path}: no such file or directory; check the path")
    kind = kind or _kind_of(path, dataset, fixed[0])
    if kind == "hdf5":
        if dataset is None:
            raise ConfigError("dataset: name the HDF5 dataset whose rows are the samples")
        return index_hdf5(path, dataset, patterns or PATTERNS[kind])
    if kind == "fixed":
        if fixed[0] is None:
            raise ConfigError("record_bytes: give the size of a record in bytes")
        return index_fixed(path, fixed[0], fixed[1], patterns or PATTERNS[kind])
    if kind not in KINDS:
        raise ConfigError(f"kind: {kind!r} is unknown; give one of {', '.join(KINDS)}")
    build = index_tfrecord if kind == "tfrecord" else index_webdataset
    return build(path, patterns or PATTERNS[kind])


def _kind_of(path: Path, dataset: str | None, record_bytes: int | None) -> str:
    if dataset is not None or path.suffix in (".h5", ".hdf5"):
        return "hdf5"
    if record_bytes is not None:
        return "fixed"
    if path.suffix == ".tar":
        return "webdataset"
    if ".tfrecord" in path.name:
        return "tfrecord"
    raise ConfigError(
        f"kind: the name of {path} does not show its kind; give one of {', '.join(KINDS)}"
    )


def tar_members(sample: bytes) -> dict[str, bytes]:
    """Returns the tar members of a sample as a dict: key -> content. A member's key is the part of
    its name after the first dot: the key of `0001.jpg` is `jpg`."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(sample), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                found[Path(member.name).name.partition(".")[2]] = content.read()
    return found
