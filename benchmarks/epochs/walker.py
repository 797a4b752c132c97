"""Accesses a dataset's names and attributes as training programs do at the start of each epoch.

    python walker.py ROOT

Each line on standard input names a step of `STEPS`. The program runs the step, and answers with one
line: the number of items that the step has found. The step `walk` must run first, because it finds
the files that the other steps use.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable

__all__ = ["STEPS"]


class Dataset:
    """The dataset: the tree of files below `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.directories: list[str] = []
        self.files: list[str] = []
        self.links: list[str] = []

    def walk(self) -> int:
        """Finds all directories, files and links with os.walk."""
        self.directories, self.files, self.links = [], [], []
        for directory, names, files in os.walk(self.root):
            self.directories.append(directory)
            paths = [os.path.join(directory, name) for name in (*names, *files)]
            self.links += [path for path in paths if os.path.islink(path)]
            found = (os.path.join(directory, name) for name in files)
            self.files += [path for path in found if not os.path.islink(path)]
        return len(self.directories) + len(self.files) + len(self.links)

    def glob(self) -> int:
        """Finds the images in the same way as tf.io.gfile.glob, which checks whether each matching
        entry is a directory."""
        found, level = 0, [self.root]
        for pattern in ("train", "class*", "*.jpg"):
            children = [f"{parent}/{name}" for parent in level for name in os.listdir(parent)]
            matching = [c for c in children if fnmatch.fnmatch(os.path.basename(c), pattern)]
            level = [child for child in matching if os.path.isdir(child)]
            found += len(matching)
        return found

    def image_folder(self) -> int:
        """Lists the dataset in the same way as torchvision's ImageFolder: finds the classes with
        os.scandir, then walks through each class in sorted order."""
        with os.scandir(f"{self.root}/train") as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir())
        found = 0
        for name in classes:
            directory = f"{self.root}/train/{name}"
            assert os.path.isdir(directory)
            for _, _, files in sorted(os.walk(directory, followlinks=True)):
                found += len(sorted(files))
        return found

    def exists(self) -> int:
        return sum(map(os.path.exists, (*self.files, *self.directories, *self.links)))

    def access(self) -> int:
        return sum(os.access(path, os.R_OK) for path in (*self.files, *self.directories))

    def stat(self) -> int:
        return sum(os.stat(path).st_nlink > 0 for path in (*self.files, *self.directories))

    def readlink(self) -> int:
        return sum(bool(os.readlink(path)) for path in self.links)

    def statvfs(self) -> int:
        return sum(os.statvfs(path).f_bsize > 0 for path in (self.root, self.files[0]))

    def read(self) -> int:
        """Opens and reads every file. Returns the number of bytes."""
        total = 0
        for path in self.files:
            with open(path, "rb") as file:
                total += len(file.read())
        return total


STEPS: dict[str, Callable[[Dataset], int]] = {
    step.__name__: step
    for step in (
        Dataset.walk,
        Dataset.glob,
        Dataset.image_folder,
        Dataset.exists,
        Dataset.access,
        Dataset.stat,
        Dataset.readlink,
        Dataset.statvfs,
        Dataset.read,
    )
}


def main() -> None:
    dataset = Dataset(sys.argv[1])
    for line in sys.stdin:
        print(STEPS[line.strip()](dataset), flush=True)


if __name__ == "__main__":
    main()
