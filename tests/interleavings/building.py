"""Builds the C code of csrc so that a scheduler (scheduler.h) decides which thread makes the next
step."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from csrc.building import CSRC, NATIVE, PRELOAD, PRELOAD_FLAGS, cc

__all__ = ["Change", "Trials"]

HERE = Path(__file__).resolve().parent
SOURCES = sorted(
    name for name in {*PRELOAD, *NATIVE} if not name.startswith(("plan/", "simulator/", "loaders/"))
)
WRAPPED = (
    "clock_gettime",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_mutex_unlock",
)
# ENGINE: the folders of the daemon's engine. OF_DAEMON: functions of libc that the code in ENGINE
# calls. These calls are redirected to functions of behind_daemon.c, for two reasons: some of them
# must be steps of the scheduler, and the others would otherwise reach the preload library, which is
# linked into the same program.
ENGINE = ("copy/", "engine/", "handover/", "publish/", "serving/", "testing/")
OF_DAEMON = (
    "close", "dup3", "fcntl", "fstat", "fstatfs", "futimens", "madvise", "mmap", "munmap", "openat",
    "pread", "statx", "unlinkat",
    "epoll_create1", "epoll_ctl", "epoll_wait", "eventfd", "eventfd_write", "getrlimit",
    "nanosleep", "pthread_create", "pthread_setname_np", "pthread_timedjoin_np", "recvmsg",
    "syscall",
)  # fmt: skip
WARNINGS = ("-Wall", "-Wextra", "-Werror")
END_OF_OWN_CALLS = '#error "Monarch runs on x86-64 and aarch64"\n#endif\n'


@dataclass(frozen=True)
class Change:
    """A replacement of a text in a file of csrc.

    file : the file's path in csrc
    old : a text that occurs exactly once in the file
    new : the text that replaces `old`
    """

    file: str
    old: str
    new: str


# Changes of csrc for all trials. They redirect all system calls of the library to the scheduler
# (calls.c).
SCHEDULED = (
    Change("shared/sys.h", "#if defined(__x86_64__)\nstatic inline long sys6(",
           "#if defined(__x86_64__)\nstatic inline long sys6_itself("),
    Change("shared/sys.h", END_OF_OWN_CALLS, END_OF_OWN_CALLS +
           "long scheduled_sys6(long n, long a, long b, long c, long d, long e, long f);\n"
           "#define sys6 scheduled_sys6\n"),
)  # fmt: skip


class Trials:
    """Compiles csrc and the C files of this folder, and links them into programs. All output files
    are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sources = self._changed("csrc", CSRC, SCHEDULED)
        with ThreadPoolExecutor() as pool:
            objects = pool.map(self._compile, SOURCES)
            self._own = list(pool.map(self._compile_own, sorted(HERE.glob("*.c"))))
            self._objects = dict(zip(SOURCES, objects, strict=True))

    def _changed(self, name: str, source: Path, changes: tuple[Change, ...]) -> Path:
        copy = self._directory / name
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.o"))
        for change in changes:
            file = copy / change.file
            text = file.read_text()
            assert text.count(change.old) == 1, (
                f"{change.file} must contain this once: {change.old}"
            )
            file.write_text(text.replace(change.old, change.new))
        return copy

    def _compile(self, name: str, sources: Path | None = None) -> Path:
        """Compiles a file of csrc for ThreadSanitizer, and returns the object file.
        ThreadSanitizer's runtime is not linked: accesses.c defines its functions. In the files of
        the engine, calls of the functions OF_DAEMON are redirected to behind_daemon.c."""
        sources = sources or self._sources
        out = sources / f"{name}.o"
        flags = [flag for flag in PRELOAD_FLAGS if not flag.startswith(("-Wl,", "-nostart"))]
        stepped = ["-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"]
        cc("-O0", "-g1", "-c", "-I.", *flags, *stepped, "-o", out, name, cwd=sources)
        if name.startswith(ENGINE):
            renamed = [f"--redefine-sym={call}=daemon_{call}" for call in OF_DAEMON]
            subprocess.run(["objcopy", *renamed, out], check=True)
        return out

    def _compile_own(self, source: Path) -> Path:
        out = self._directory / f"{source.name}.o"
        words = ["-O1", "-g1", "-c", "-D_GNU_SOURCE", *WARNINGS, "-I."]
        cc(*words, "-o", out, source, cwd=self._sources)
        return out

    def program(self, name: str, *changes: Change) -> Path:
        """Links a program and returns its path.

        changes : the changes that introduce a bug, which a trial must find; they are made in copies
            of C files of csrc
        """
        objects = dict(self._objects)
        if changes:
            sources = self._changed(f"csrc-{name}", self._sources, changes)
            changed = {change.file for change in changes}
            objects |= {file: self._compile(file, sources) for file in changed}
        out = self._directory / name
        wraps = [f"-Wl,--wrap={function}" for function in WRAPPED]
        # Without -z now, each forked process would look up the addresses of libc's functions again.
        cc("-no-pie", "-pthread", "-Wl,-z,now", *wraps, "-o", out, *self._own, *objects.values())
        return out
