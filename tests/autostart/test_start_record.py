"""What the record of a configuration says, and for whom."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from autostart.started import CAT, Started, differs, times
from support.files import Files
from support.session import wait_until


def test_a_record_is_of_one_configuration(site: Started, files: Files, tmp_path: Path) -> None:
    """With another file or other variables the library asks the starter again."""
    (tmp_path / "elsewhere").write_text("x")
    site.learn()
    assert site.run(CAT, tmp_path / "elsewhere").returncode == 0
    assert site.starts() == 0
    assert (
        site.run(CAT, tmp_path / "elsewhere", env={"MONARCH_SOURCE": str(files.root)}).returncode
        == 0
    )
    site.wait_for_starter()
    assert (
        f"value MONARCH_SOURCE={files.root}"
        in site.session.paths.autostart.read_text().splitlines()
    )
    assert (site.starts(), site.daemons()) == (0, []), "taken back, as it was not needed"


def test_a_running_daemon_is_told_of_a_new_source_once(
    site: Started, files: Files, tmp_path: Path
) -> None:
    (tmp_path / "more").mkdir()
    site.learn()
    with site.session.start():
        known, new = (
            {"MONARCH_SOURCE": each}
            for each in (str(files.root), f"{files.root}:{tmp_path / 'more'}")
        )
        for given, is_told in ((known, False), (new, True), (new, False)):
            before = times(site)
            assert site.run("/bin/true", env=given).returncode == 0
            if is_told:
                wait_until(partial(differs, site, before), what="a start")
            site.wait_for_starter()
            assert (times(site) != before) == is_told
        said = site.session.paths.autostart.read_text()
        assert f"value MONARCH_SOURCE={new['MONARCH_SOURCE']}" in said.splitlines()
        assert str(tmp_path / "more") in site.session.connection.ask("where")["sources"]
