"""Makes a session in which every case of processes.c has its own directories, and makes an
identical tree outside the session."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from support.session import Session, wait_until

from monarch_py.native import LIBRARY

NEEDS_ROOT = re.compile("chroot|mount|setns|user|without_r")
# The time limit of a case [s]. On an idle machine, no case takes more than a second.
LIMIT_S = 60.0

Done = subprocess.CompletedProcess[str]


def plant(here: Path, mark: str = "") -> None:
    """Makes the files of one case.

    mark : text at the start of each line, so that the content differs from that of other trees
    """
    for name, mode in (("", 0o755), ("d", 0o755), ("closed", 0o700)):
        (here / name).mkdir(parents=True)
        (here / name).chmod(mode)
    sizes = {"f": 6000, "g": 500, "m": 700, "x": 80, "d/x": 300, "closed/x": 30, "secret": 20}
    for name, lines in {**sizes, "f.skip": 40}.items():
        path = here / name
        path.write_text("".join(f"{mark}{i} of {name}\n" for i in range(lines)))
        path.chmod(0o600 if name == "secret" else 0o644)
    for name, target in {"to_f": "f", "to_here": ".", "circle": "round", "round": "circle"}.items():
        (here / name).symlink_to(target)


@dataclass(frozen=True)
class Place:
    """The directories of a case, below `top`."""

    top: Path
    case: str

    @property
    def here(self) -> Path:
        return self.top / "source" / self.case

    @property
    def outside(self) -> Path:
        return self.top / "outside" / self.case

    def plant(self) -> None:
        plant(self.here)
        self.outside.mkdir(parents=True)
        if self.case == "errno":
            for i in range(100):
                (self.here / f"cold{i}").write_text(f"cold {i}\n")
        if NEEDS_ROOT.search(self.case):
            # Two trees that processes of the case find at the path of `here`: the first one after a
            # chroot to outside/root, the second one after a mount of outside/other over the source.
            plant(self.outside / "root" / str(self.here)[1:], "other root ")
            plant(self.outside / "other" / self.case, "other mount ")

    def plant_late(self) -> None:
        """Makes files after the scan, so that the catalog does not list them."""
        (self.here / "late").write_text("late\n")
        if self.case == "lowest_while_it_grows":
            (self.here / "new").mkdir()
            for i in range(600):
                (self.here / "new" / str(i)).write_bytes(b"n" * i)


def finish(process: subprocess.Popen[str], said: str = "", line: str | None = None) -> Done:
    """Waits until a program and all processes that it has started have closed their output. If
    this fails, kills the program's process group.

    said : output of the program that was read before;  line : input for the program
    """
    try:
        out, err = process.communicate(line, timeout=LIMIT_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return Done(process.args, process.returncode, said + out, err)


def differences(expected: str, seen: str) -> list[str]:
    """Returns the pairs of lines that differ, as text: the line without the library, and the line
    with the library."""
    pairs = zip_longest(expected.splitlines(), seen.splitlines(), fillvalue="(nothing)")
    return [f"{one} -> {other}" for one, other in pairs if one != other]


class Stage:
    """A session in which nearly all files have copies, and an identical tree outside the source.
    The cases also run without the library, on this tree."""

    def __init__(self, top: Path, program: Path, cases: Sequence[str]) -> None:
        self.top, self.program, self.cases = top, program, cases
        # The session uses a copy of the library, because LIBRARY may be rebuilt during the session.
        self.library = top / "libmonarch.so"
        shutil.copy(LIBRARY, self.library)

    @contextmanager
    def serving(self) -> Iterator[Stage]:
        places = [Place(top, case) for top in (self.top, self.top / "plain") for case in self.cases]
        for place in places:
            place.plant()
        source = {"path": str(self.top / "source"), "exclude": ["*.skip"]}
        with Session(self.top, [source], preload=self.library) as self.session:
            self.session.start().wait_scanned()
            self._warm()
            for place in places:
                place.plant_late()
            yield self

    def _warm(self) -> None:
        names = ("f", "g", "m", "x", "d/x", "closed/x", "secret")
        files = [str(Place(self.top, case).here / name) for case in self.cases for name in names]
        self.session.run(["cat", *files], check=True)

        def present() -> bool:
            return bool(self.session.status()["sources"][0]["present"] >= len(files))

        wait_until(present, what="the copies")

    def hits(self) -> int:
        return int(self.session.totals()["hits"])

    def start(
        self, case: str, *more: str, preload: bool = True, env: Mapping[str, str] | None = None,
        program: Path | None = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        place = Place(self.top if preload else self.top / "plain", case)
        words = [program or self.program, case, place.here, place.outside, *more]
        return self.popen([str(word) for word in words], preload=preload, env=env)

    def popen(
        self, words: Sequence[str], *, preload: bool, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            env=self.session.env(preload, **(env or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, case: str, **more: object) -> Done:
        done = finish(self.start(case, **more))  # type: ignore[arg-type]
        done.stdout = self.plain_names(done.stdout)
        return done

    def plain_names(self, text: str) -> str:
        return text.replace(str(self.top / "plain"), "").replace(str(self.top), "")

    def compare(self, case: str, seen: Done, **more: object) -> None:
        """Checks that `seen` has the exit status, output and error output that the case has without
        the library."""
        expected = self.run(case, preload=False, **more)
        assert (expected.returncode, expected.stderr) == (0, ""), expected
        assert expected.stdout
        found = differences(expected.stdout, self.plain_names(seen.stdout))
        assert found == [], "\n".join(found)
        assert (seen.returncode, seen.stderr) == (0, "")
