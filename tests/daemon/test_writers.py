"""When a daemon starts, it treats files as changed if a process has them open for writing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from monarch_py.daemon.openfiles import writers

HOLDS = """
import sys
open_files = [open(name, how) for name, how in zip(sys.argv[1::2], sys.argv[2::2])]
print(flush=True)
sys.stdin.read()
"""


def test_files_that_are_open_for_writing_and_have_a_name(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("written", "removed", "read")}
    for file in files.values():
        file.touch()
    inodes = {name: file.stat().st_ino for name, file in files.items()}
    words = [str(files["written"]), "ab", str(files["removed"]), "ab", str(files["read"]), "rb"]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        files["removed"].unlink()
        found = {inode for _, inode in writers({tmp_path.stat().st_dev})}
        assert found & set(inodes.values()) == {inodes["written"]}
        holder.communicate()
