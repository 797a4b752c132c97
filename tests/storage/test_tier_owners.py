"""Checks whether other users could replace a tier's directory with a directory of their own."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import users
from support.users import ALICE, BOBBY

from monarch_py.util.ownership import Doubt, doubts, user_name, why_not_private

if os.geteuid() != 0:
    pytest.skip("only root can give files to other users", allow_module_level=True)

outside = pytest.fixture(users.open_place)
GROUP = 64000  # a group without members


@pytest.fixture
def place(outside: Path) -> Iterator[Path]:
    """The directory that the tests examine: a/b/c below a directory that belongs to root."""
    made = outside / "a" / "b" / "c"
    made.mkdir(parents=True)
    yield made


def opened_to_all(place: Path) -> None:
    place.chmod(0o777)


def parent_opened_to_all(place: Path) -> None:
    place.parent.chmod(0o702)


def anothers(place: Path) -> None:
    os.chown(place, BOBBY, BOBBY)


def parent_anothers(place: Path) -> None:
    os.chown(place.parents[1], BOBBY, BOBBY)


def parent_anothers_and_sticky(place: Path) -> None:
    os.chown(place.parent, BOBBY, BOBBY)
    place.parent.chmod(0o1777)


def through_a_link_of_another(place: Path) -> None:
    elsewhere = place.parent / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to("../b/elsewhere")
    os.chown(place, BOBBY, BOBBY, follow_symlinks=False)
    place.parent.chmod(0o1777)


def behind_a_link_opened_to_all(place: Path) -> None:
    elsewhere = place.parents[1] / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    place.rename(elsewhere / "real")
    elsewhere.chmod(0o777)
    place.symlink_to(elsewhere / "real")


def sound(place: Path) -> None: ...


def sticky(place: Path) -> None:
    place.chmod(0o1777)
    place.parent.chmod(0o1777)


def through_a_link_of_ours(place: Path) -> None:
    place.rename(place.parent / "elsewhere")
    place.symlink_to(place.parent / "elsewhere")


def the_groups(place: Path) -> None:
    os.chown(place.parent, 0, GROUP)
    place.parent.chmod(0o775)


def the_groups_and_sticky(place: Path) -> None:
    the_groups(place)
    place.parent.chmod(0o1775)


def the_groups_of_our_own(place: Path) -> None:
    place.parent.chmod(0o775)  # root:root


def with_an_access_list(place: Path) -> None:
    entries = [(0x01, 7, 0xFFFFFFFF), (0x02, 7, BOBBY), (0x04, 5, 0xFFFFFFFF)]
    entries += [(0x10, 7, 0xFFFFFFFF), (0x20, 5, 0xFFFFFFFF)]
    rules = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(place, "system.posix_acl_access", struct.pack("<I", 2) + rules)
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")


CASES: dict[Callable[[Path], None], tuple[bool, str] | None] = {
    opened_to_all: (True, "a/b/c may be written by everybody and has no sticky bit"),
    parent_opened_to_all: (True, "a/b may be written by everybody and has no sticky bit"),
    anothers: (True, f"a/b/c belongs to user {BOBBY}, who can replace the files in it"),
    parent_anothers: (True, f"a belongs to user {BOBBY}"),
    parent_anothers_and_sticky: (True, f"a/b belongs to user {BOBBY}"),
    through_a_link_of_another: (True, f"a/b/c belongs to user {BOBBY}"),
    behind_a_link_opened_to_all: (True, "a/elsewhere may be written by everybody"),
    sound: None,
    sticky: None,
    through_a_link_of_ours: None,
    the_groups: (False, f"a/b may be written by group {GROUP}"),
    the_groups_and_sticky: None,
    the_groups_of_our_own: None,
    with_an_access_list: (False, "a/b/c may be written by those whom its access list names"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_who_could_replace_it(outside: Path, place: Path, case: Callable[[Path], None]) -> None:
    case(place)
    expected, found = CASES[case], doubts(place)
    if expected is None:
        assert found == []
        return
    (doubt,) = found
    assert doubt.is_certain is expected[0]
    assert doubt.text.startswith(f"{outside}/{expected[1]}")
    assert doubt.hint


def test_in_a_user_name_space_an_unknown_owner_may_be_root(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path: "0 1000 1\n" if path.name == "uid_map" else read(path),
    )
    # ALICE is user 65534, whom the kernel reports as the owner if it cannot map the real owner.
    os.chown(place, ALICE, ALICE)
    assert [doubt.is_certain for doubt in doubts(place)] == [False]
    os.chown(place, BOBBY, BOBBY)
    assert [doubt.is_certain for doubt in doubts(place)] == [True]


def test_the_certain_ones_come_first(place: Path) -> None:
    the_groups(place)
    opened_to_all(place)
    first, second = doubts(place)
    assert isinstance(first, Doubt)
    assert (first.is_certain, second.is_certain) == (True, False)


def test_a_private_directory(place: Path) -> None:
    assert why_not_private(place) == "is open to other users (mode 0755); chmod 700 it"
    place.chmod(0o700)
    assert why_not_private(place) == ""
    os.chown(place, BOBBY, BOBBY)
    assert why_not_private(place) == (
        f"belongs to user {BOBBY}; ask user {BOBBY} or root to remove it"
    )
    place.rmdir()
    place.touch()
    assert why_not_private(place) == "is not a directory; remove it"
    assert user_name(0) == "user root"
