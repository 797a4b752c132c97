"""Indices of datasets: their files, and where in the files the samples lie."""

from monarch_py.plan.index._build import (
    PATTERNS,
    index_files,
    index_fixed,
    index_hdf5,
    index_image_folder,
    index_tfrecord,
    index_webdataset,
)
from monarch_py.plan.index._index import GRAINS, Index, Units, load_arrays, save_arrays

__all__ = [
    "GRAINS",
    "PATTERNS",
    "Index",
    "Units",
    "index_files",
    "index_fixed",
    "index_hdf5",
    "index_image_folder",
    "index_tfrecord",
    "index_webdataset",
    "load_arrays",
    "save_arrays",
]
