"""Builds the C parts into the package: the cffi module that the daemon uses, and the preload
library, which is linked only to libc. If libfuse3 is found, also builds the demo's slow source."""

import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SHARED = ["shared/xxh3.c", "shared/catalog.c", "shared/claims.c", "shared/path.c"]
PRELOAD = [
    "preload/process/real.c",
    "preload/process/apart.c",
    "preload/session/segments.c",
    "preload/session/roots.c",
    "preload/session/rights.c",
    "preload/session/session.c",
    "preload/session/tell.c",
    "preload/autostart/launch.c",
    "preload/autostart/record.c",
    "preload/autostart/claim.c",
    "preload/autostart/interpreter.c",
    "preload/autostart/autostart.c",
    "preload/attach/attach.c",
    "preload/session/copies.c",
    "preload/lookup/cwd.c",
    "preload/session/warn.c",
    "preload/process/log.c",
    "preload/lookup/where.c",
    "preload/lookup/links.c",
    "preload/fill/serve.c",
    "preload/fill/progress.c",
    "preload/changes/record.c",
    "preload/lookup/metadata.c",
    "preload/descriptors/track.c",
    "preload/fill/wait.c",
    "preload/fill/request.c",
    "preload/fill/open_wait.c",
    "preload/promotion/promote.c",
    "preload/fill/handover.c",
    "preload/process/proc.c",
    "preload/descriptors/locked_files.c",
    "preload/promotion/backing.c",
    "preload/calls/locks.c",
    "preload/process/maps.c",
    "preload/mappings/mapping_table.c",
    "preload/mappings/mappings.c",
    "preload/process/momentary.c",
    "preload/mappings/move.c",
    "preload/calls/read.c",
    "preload/calls/map.c",
    "preload/calls/remap.c",
    "preload/calls/descriptors.c",
    "preload/calls/open.c",
    "preload/calls/spawn.c",
    "preload/calls/place.c",
    "preload/calls/stdio.c",
    "preload/calls/stat.c",
    "preload/calls/look.c",
    "preload/calls/directories.c",
    "preload/calls/filesystem.c",
    "preload/calls/ioctl.c",
    "preload/calls/watch.c",
    "preload/calls/names.c",
    "preload/calls/change.c",
]
WARNINGS = ["-Wall", "-Wextra", "-Werror=implicit-function-declaration"]
PRELOAD_FLAGS = [
    "-D_GNU_SOURCE",
    # A program may pass a null pointer to open(). The compiler must not assume that this cannot
    # happen, because the kernel must see the pointer and return an error.
    "-fno-delete-null-pointer-checks",
    # If _FORTIFY_SOURCE is defined, libc's headers replace functions such as read() with variants
    # that check the size of the buffer. The library defines read() itself, so the macro must be
    # undefined.
    "-U_FORTIFY_SOURCE",
    "-fvisibility=hidden",
    # A preload library is loaded when the program starts. So its thread-local variable may use the
    # model `initial-exec`, in which no function call is needed to find the variable.
    "-ftls-model=initial-exec",
    "-fno-plt",
    "-fno-stack-protector",
    "-Wl,-z,defs,-z,relro,-z,now",
    # Map the library with two mappings instead of four, because every process of a job maps it.
    "-Wl,-z,noseparate-code",
    # When a program starts, the loader should look up as few names as possible for the library.
    # With -Bsymbolic, calls between the library's own functions need no look-up. The library does
    # not need the compiler's start files, which would need four more look-ups. So these files are
    # left out.
    "-Wl,-Bsymbolic",
    "-nostartfiles",
    # Leave out functions that only the daemon calls, because every process of a job maps the
    # library.
    "-ffunction-sections",
    "-Wl,--gc-sections",
    # Put the large tables behind all small variables (attributes.h).
    "-Wl,--sort-section=name",
]


def cc() -> list[str]:
    """Returns the command of the C compiler for the preload library and the slow source: MONARCH_CC
    if it is set, otherwise CC. MONARCH_CC is needed if CC is a compiler for an older libc, because
    the linker of such a compiler lacks some of the options above."""
    return shlex.split(os.environ.get("MONARCH_CC") or os.environ.get("CC", "gcc"))


def fuse_flags() -> list[str] | None:
    try:
        command = ["pkg-config", "--cflags", "--libs", "fuse3"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return shlex.split(done.stdout) if done.returncode == 0 else None


# Whether this Python has the stable ABI. If so, cffi uses only the stable ABI, and one wheel serves
# all versions of Python. Free-threaded builds and debug builds of Python have no stable ABI.
IS_STABLE = not (sysconfig.get_config_var("Py_GIL_DISABLED") or hasattr(sys, "gettotalrefcount"))


class BuildAll(build_ext):
    def run(self) -> None:
        package = Path(self.get_ext_fullpath("monarch_py._native")).parent
        package.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(1) as beside:
            library = beside.submit(self.build_preload, package / "libmonarch.so")
            super().run()
            library.result()
        # In an installation, the library finds the interpreter without this file.
        if self.inplace:
            (package / "interpreter").write_text(f"{sys.executable}\n")
        self.build_slow_source(package / "slowsource")

    def build_preload(self, out: Path) -> None:
        flags = list(PRELOAD_FLAGS)
        if sysconfig.get_platform() == "linux-aarch64":
            flags.append("-mno-outline-atomics")
        sources = [str(ROOT / "csrc" / name) for name in SHARED + PRELOAD]
        extra = shlex.split(os.environ.get("MONARCH_CFLAGS", ""))
        flags.append(f"-I{ROOT / 'csrc'}")
        command = [*cc(), "-O2", "-g", "-fPIC", "-shared", *WARNINGS, *flags, *extra]
        self.spawn([*command, "-Wl,-soname,libmonarch.so", "-o", str(out), *sources])

    def build_slow_source(self, out: Path) -> None:
        flags = fuse_flags()
        if flags is None:
            return
        source = str(ROOT / "benchmarks" / "slowsource.c")
        command = [*cc(), "-O2", *WARNINGS, "-o", str(out), source, *flags, "-pthread"]
        if subprocess.run(command, check=False).returncode != 0:
            print(
                "monarch: the demo's slow source could not be built, so `monarch demo` will read"
                " from a plain directory; see the compiler's messages above"
            )


setup(
    cmdclass={"build_ext": BuildAll},
    cffi_modules=["csrc/build_native.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if IS_STABLE else {},
)
