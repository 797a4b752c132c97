"""Readers of file formats: numpy, Pillow, HDF5, parquet, zip and tar archives."""

from __future__ import annotations

import io
import mmap
import tarfile
import zipfile
from pathlib import Path

from reader_kit import Transcript, digest, files_of, reader, register


@reader
def pil(root: Path, out: Transcript) -> None:
    """Opens images with Pillow, by name and from an open file. If an image is opened by name,
    Pillow keeps the file open until the pixels are read."""
    from PIL import Image

    for path in files_of(root, "images/*/*"):
        with Image.open(path) as image:
            out.data(path, image.convert("RGB").tobytes(), format=image.format)
    for path in files_of(root, "images/*/*_00*"):
        with open(path, "rb") as file, Image.open(file) as image:
            out.data(path, image.tobytes(), way="file")


@reader
def np_load(root: Path, out: Transcript) -> None:
    """Reads with np.load: .npy files at once, and the members of .npz files when they are used."""
    import numpy as np

    for path in files_of(root, "numpy/*.npy"):
        array = np.load(path)
        out.data(path, array.tobytes("A"), shape=array.shape, dtype=str(array.dtype))
    for path in files_of(root, "numpy/*.npz"):
        with np.load(path) as archive:
            for name in sorted(archive.files):
                out.data(path, archive[name].tobytes(), member=name)


@reader
def np_load_many(root: Path, out: Transcript) -> None:
    """Reads an array from one open file in three steps: the header, the first row, and the rest.
    Each step continues at the offset where the previous step ended."""
    import numpy as np

    for path in files_of(root, "numpy/sample_*.npy"):
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            first = np.fromfile(file, dtype, shape[1])
            out.data(path, first.tobytes(), version=version, offset=file.tell())
            rest = np.fromfile(file, dtype)
            out.data(path, rest.tobytes(), offset=file.tell())


@reader
def np_load_mmap(root: Path, out: Transcript) -> None:
    """Maps arrays with np.load(mmap_mode=), read-only and copy-on-write, and uses them after numpy
    has closed the files."""
    import numpy as np

    paths = files_of(root, "numpy/sample_*.npy", "numpy/large.npy", "numpy/fortran.npy")
    held = [(path, mode, np.load(path, mmap_mode=mode)) for path in paths for mode in ("r", "c")]
    for path, mode, array in held:
        if mode == "c":
            array[0, 0] += 1
        out.data(path, array.tobytes("A"), mode=mode)


@reader
def np_fromfile(root: Path, out: Transcript) -> None:
    """Reads by name with np.fromfile: whole files, a part of each file, and very small files."""
    import numpy as np

    for path in files_of(root, "raw/*.bin"):
        out.data(path, np.fromfile(path, np.float32).tobytes())
        out.data(path, np.fromfile(path, np.float32, count=1000, offset=4096).tobytes())
    for path in files_of(root, "edge/page", "edge/one_byte", "edge/empty"):
        out.data(path, np.fromfile(path, np.uint8).tobytes())


@reader
def np_memmap(root: Path, out: Transcript) -> None:
    """Maps each file with np.memmap, first from its beginning, and then from an offset that is not
    a multiple of the page size."""
    import numpy as np

    for path in files_of(root, "raw/*.bin", "edge/block*"):
        out.data(path, np.memmap(path, np.uint8, "r").tobytes())
        out.data(path, np.memmap(path, np.uint8, "r", offset=4099).tobytes())


def _h5py_reader(driver: str) -> None:
    def read(root: Path, out: Transcript) -> None:
        import h5py

        options = {"backing_store": False} if driver == "core" else {}
        for path in files_of(root, "hdf5/*.h5"):
            with h5py.File(path, "r", driver=driver, **options) as file:
                for name in ("contiguous", "group/chunked"):
                    data = file[name]
                    out.data(path, data[...].tobytes(), dataset=name)
                    out.data(path, data[10:60:7, 20:350].tobytes(), dataset=f"part of {name}")
                out.line(path, epoch=int(file["group"].attrs["epoch"]))

    register(f"h5py_{driver}", read)


for _driver in ("sec2", "stdio", "core"):
    _h5py_reader(_driver)


@reader
def h5py_swmr(root: Path, out: Transcript) -> None:
    """Reads HDF5 files in the mode for a single writer and many readers (SWMR), without locks. All
    files are open at the same time."""
    import h5py

    paths = files_of(root, "hdf5/*.h5")
    held = [h5py.File(path, "r", libver="latest", swmr=True, locking=False) for path in paths]
    for row in range(0, 300, 30):
        for path, file in zip(paths, held, strict=True):
            out.data(path, file["group/chunked"][row].tobytes(), row=row)
    for file in held:
        file.close()


@reader
def pyarrow_parquet(root: Path, out: Transcript) -> None:
    """Reads whole Parquet tables, and single row groups and columns, with and without mappings."""
    import pyarrow.parquet as pq

    for path in files_of(root, "parquet/*.parquet"):
        for mapped in (False, True):
            table = pq.read_table(path, memory_map=mapped)
            columns = {
                name: digest(repr(table[name].to_pylist()).encode()) for name in ("id", "value")
            }
            out.line(path, memory_map=mapped, rows=table.num_rows, columns=columns)
            with pq.ParquetFile(path, memory_map=mapped, pre_buffer=not mapped) as file:
                for group in range(file.num_row_groups):
                    names = file.read_row_group(group, columns=["name"])["name"].to_pylist()
                    out.line(
                        path, memory_map=mapped, group=group, names=digest(repr(names).encode())
                    )


@reader
def pyarrow_files(root: Path, out: Transcript) -> None:
    """Reads through Arrow's own file objects: OSFile, memory_map, the local file system."""
    import pyarrow as pa
    from pyarrow import fs

    local = fs.LocalFileSystem()
    for path in files_of(root, "tfrecord/*", "edge/page", "edge/one_byte", "edge/block_and_one"):
        with pa.OSFile(str(path)) as file:
            out.data(path, file.read(), way="OSFile")
            out.data(path, file.read_at(min(100, file.size()), file.size() // 2), way="read_at")
        with pa.memory_map(str(path)) as mapped:
            out.data(path, mapped.read(), way="memory_map")
        with local.open_input_stream(str(path)) as stream:
            out.data(path, stream.read(), way="stream")
        info = local.get_file_info(str(path))
        out.line(path, kind=str(info.type), size=info.size, mtime_ns=info.mtime_ns)


def _zip_members(out: Transcript, name: Path, archive: zipfile.ZipFile, way: str) -> None:
    out.line(name, broken=archive.testzip(), way=way)
    for member in archive.namelist():
        with archive.open(member) as file:
            out.data(name, file.read(), member=member, way=way)


@reader
def zip_members(root: Path, out: Transcript) -> None:
    """Reads zip archives with zipfile. Opens each archive by its path, and again as the bytes of a
    memory mapping."""
    for path in files_of(root, "zip/*.zip"):
        with zipfile.ZipFile(path) as archive:
            _zip_members(out, path, archive, "name")
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            zipfile.ZipFile(io.BytesIO(mapped)) as archive,
        ):
            _zip_members(out, path, archive, "mapping")


@reader
def tar_members(root: Path, out: Transcript) -> None:
    """Reads tar archives with tarfile: with seeks, and as a stream from front to back, as
    webdataset does."""
    for path in files_of(root, "tar/*.tar"):
        for mode in ("r:", "r|"):
            with tarfile.open(path, mode) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    if file is not None:
                        out.data(path, file.read(), member=member.name, mode=mode)
        with tarfile.open(path) as archive:
            last = archive.getmembers()[-1]
            file = archive.extractfile(last)
            out.data(path, file.read() if file else b"", member=last.name, mode="last first")
