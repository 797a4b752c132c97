"""Determines whether other users could replace a directory of this user with another directory.

Other users can do so if they have write access to the directory's parent, or to any directory above
the parent, up to the root. Links on the path are checked like directories.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The largest number of links that are followed on one path, as in the kernel.
MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason why another user may be able to replace the content of a directory.

    is_certain : False if this process cannot see whether the reason applies. For example, it cannot
        see all members of a group, or who an owner without a name is
    """

    is_certain: bool
    text: str
    hint: str


def user_name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except (KeyError, OSError):
        return f"user {uid}"


def doubts(directory: Path) -> list[Doubt]:
    """Returns the doubts about `directory`, and about every directory and link on its path; certain
    doubts come first. Raises OSError if a directory or a link cannot be examined."""
    found = [doubt for path, st in _way(directory) if (doubt := _doubt(path, st)) is not None]
    return sorted(dict.fromkeys(found), key=lambda doubt: not doubt.is_certain)


def why_not_private(path: Path) -> str:
    """Returns "" if `path` is a directory that only this user can access (mode 0700), otherwise
    what is wrong and what to do about it. Raises OSError if `path` does not exist."""
    found = path.lstat()
    owner = found.st_uid
    if owner != os.geteuid():
        what = "is a link of" if stat.S_ISLNK(found.st_mode) else "belongs to"
        whom = f"{user_name(owner)} or root" if owner else "root"
        return f"{what} {user_name(owner)}; ask {whom} to remove it"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory; remove it"
    if found.st_mode & 0o077:
        return f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); chmod 700 it"
    return ""


def _way(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields the path and the attributes of each directory and link on the path of `directory`,
    from the root to `directory` itself."""
    left = list(reversed(directory.absolute().parts))
    path, links = Path(left.pop()), 0
    yield path, path.lstat()
    while left:
        name = left.pop()
        path = path.parent if name == ".." else path / name
        st = path.lstat()
        yield path, st
        if stat.S_ISLNK(st.st_mode) and (links := links + 1) <= MAX_LINKS:
            target = Path(os.readlink(path))
            left += reversed(target.parts)
            path = Path(left.pop()) if target.is_absolute() else path.parent


def _doubt(path: Path, st: os.stat_result) -> Doubt | None:
    hint = f"choose a directory of yours, or have root correct {path}"
    if st.st_uid not in (0, os.geteuid()):
        text = f"{path} belongs to {user_name(st.st_uid)}, who can replace the files in it"
        return Doubt(not _may_be_root(st.st_uid), text, hint)
    # The mode of a link has no meaning. A directory with the sticky bit is safe even if others may
    # write to it. Then only a file's owner and the directory's owner may rename or remove the file.
    if stat.S_ISLNK(st.st_mode) or st.st_mode & stat.S_ISVTX:
        return None
    if st.st_mode & stat.S_IWOTH:
        text = f"{path} may be written by everybody and has no sticky bit"
        return Doubt(
            True, f"{text}, so that others can replace the files in it", f"chmod +t {path}"
        )
    if st.st_mode & stat.S_IWGRP and (who := _writers(path, st)):
        return Doubt(
            False, f"{path} may be written by {who}, who can replace the files in it", hint
        )
    return None


def _may_be_root(uid: int) -> bool:
    """Returns whether this owner may be root. In a user namespace, all unmapped users have the same
    user ID. The host's root may be one of them."""
    try:
        known = Path("/proc/self/uid_map").read_text().split()
        unknown = int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False
    return uid == unknown and known != ["0", "0", "4294967295"]


def _writers(path: Path, st: os.stat_result) -> str:
    """Returns who, besides this user, may write to `path` because the group's write bit is set; ""
    if nobody may. Normally, the bit is the group's permission. If `path` has an access control
    list, the bit only limits the permissions in that list."""
    try:
        os.getxattr(path, "system.posix_acl_access", follow_symlinks=False)
        return "those whom its access list names"
    except OSError:
        pass  # `path` has no access control list, or the file system does not support such lists
    try:
        group = grp.getgrgid(st.st_gid)
        mine = pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, OSError):
        return f"group {st.st_gid}"
    is_own = group.gr_name == mine and set(group.gr_mem) <= {mine, "root"}
    return "" if is_own else f"group {group.gr_name}"
