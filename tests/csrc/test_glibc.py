"""Compares the functions that the library interposes with those of libc. A function that opens,
changes or names files must be interposed, or REASONS must say why it is not.

glibc/functions.txt lists every function of glibc 2.17 to 2.44 on x86-64 and aarch64, each with the
version that introduced it (2.17 for that version and all earlier ones). The list is taken from the
lists of symbols in zig 0.17 (lib/libc/glibc/abilists).
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from monarch_py.native import LIBRARY

LISTED = Path(__file__).parent / "glibc" / "functions.txt"
# Names of functions that may open, change or name files.
TOUCHES = re.compile(
    "open|creat|link|rename|^remove$|mkdir|rmdir|mknod|mkfifo|temp|tmp|chmod|chown|utime|xattr|trunc"
    "|spawn|mount|root|chdir|unshare|setns|clone|swapo|acct|utx|pututline|^login|^logwtmp|fork|exec|capset"
    "|fallocate|write|handle|shm_|^syslog|^daemon$|^logout$"
)
# Functions whose names match TOUCHES, but that do not use a file by its name.
NO_FILES = re.compile(
    "^(pthread|posix_spawnattr|clnt|auth|svc|xdr|sem_|mq_|epoll|timer|timerfd|eventfd|tss|thrd|hcreate"
    "|sig|argz|__rpc|__mq|__pthread|mutex)|^(regexec|re_exec|rexec|rexec_af|_IO_un_link|_IO_link_in"
    "|create_module|__register_atfork|iconv_open|envz_remove|dlmopen|dlopen|tempnam|tmpnam|tmpnam_r"
    "|mktemp|setlogmask|pidfd_open|memfd_create|fmemopen|open_memstream|open_wmemstream|fopencookie"
    "|process_vm_writev|catopen|_IO_proc_open)$"
)
# reason why functions are not interposed -> these functions. In a reason, "it" is the function.
REASONS = {
    "its descriptor was opened by an interposed call, which recorded the change": "_IO_do_write"
    " _IO_file_write"
    " _IO_fwrite _IO_wdo_write __pwrite64 __write aio_write aio_write64 fallocate fallocate64"
    " ftruncate ftruncate64 fwrite fwrite_unlocked posix_fallocate posix_fallocate64 pwrite"
    " pwrite64 pwritev pwritev2 pwritev64 pwritev64v2 write writev",
    "the program that it starts is under the library, too": "_IO_popen popen execl execle execlp"
    " execv execve execveat execvp execvpe fexecve",
    "the child is under the library, and opens files for itself": "__vfork vfork",
    "it lists the directory of the source, and opens no copy": "fdopendir fts_open fts64_open",
    "it reads attributes of the link itself, which has no copy": "lgetxattr llistxattr",
    "the library reads the list of actions at posix_spawn": "posix_spawn_file_actions_addchdir_np"
    " posix_spawn_file_actions_addclose posix_spawn_file_actions_addclosefrom_np"
    " posix_spawn_file_actions_adddup2 posix_spawn_file_actions_addfchdir_np"
    " posix_spawn_file_actions_addtcsetpgrp_np posix_spawn_file_actions_destroy"
    " posix_spawn_file_actions_init",
    "libc calls it for a stream that was opened by an interposed call": "_IO_file_fopen"
    " _IO_file_open",
    "the names lie in /dev/shm itself, which is not a source": "shm_open shm_unlink",
    "the file has no name, or its name is removed at once": "tmpfile tmpfile64",
    "opens a terminal or the system's log": "daemon forkpty login_tty openpty posix_openpt openlog"
    " syslog",
    "writes the system's records of users": "login logout logwtmp pututline pututxline updwtmp"
    " updwtmpx endutxent getutxent getutxid getutxline setutxent getutmpx"
    " utmpxname getutmp utmpname",
    "an administrator calls it for the whole machine": "acct swapon swapoff pivot_root",
    "it mounts for all processes, unnoticed by the library: see Known differences": "fsmount fsopen"
    " mount mount_setattr move_mount open_tree umount umount2",
}


def words() -> dict[str, tuple[int, ...]]:
    """Returns function -> the version of glibc that introduced the function."""
    lines = (line.split() for line in LISTED.read_text().splitlines())
    return {name: tuple(map(int, version.split("."))) for version, name in lines}


def exported(library: Path) -> set[str]:
    """Returns the functions that a library exports, except those for libc's own use
    (GLIBC_PRIVATE)."""
    said = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split()[1:] for line in said.splitlines()]
    return {name.split("@")[0] for kind, name in symbols if kind in "TWi" and "PRIVATE" not in name}


def libc() -> Path:
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"/\S*/libc[.-]\S*", maps)
    if found is None:
        pytest.skip("this Python has no libc of its own: it is linked statically")
    return Path(found[0])


def test_this_libc_has_nothing_that_nobody_has_looked_at() -> None:
    """glibc/functions.txt lists every function of this machine's libc. If a newer libc has more
    functions, add them to the list, and look at the next test."""
    assert exported(libc()) - set(words()) == set()


def test_every_function_that_touches_files_is_interposed_or_has_a_reason() -> None:
    touching = {n for n in words() if TOUCHES.search(n) and not NO_FILES.search(n)}
    reasons = {name for names in REASONS.values() for name in names.split()}
    ours = exported(LIBRARY)
    assert touching - ours - reasons == set()
    # REASONS lists no interposed function, and no function outside `touching`.
    assert reasons & ours == set()
    assert reasons - touching == set()


def test_nothing_is_interposed_that_libc_does_not_have() -> None:
    assert exported(LIBRARY) - set(words()) == set()
