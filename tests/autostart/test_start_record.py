"""Starters (processes that start the daemon) record the configuration for later jobs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from autostart.started import CAT, Started, counted, differs, times
from support.files import Files
from support.session import wait_until


def recorded(site: Started) -> list[str]:
    """Returns the value of MONARCH_SOURCE in each record; "" for a record without a value."""
    lines = site.session.paths.autostart.read_text().splitlines()
    values = [line.split() for line in lines if line.startswith("value MONARCH_SOURCE")]
    return [value.partition("=")[2] for _, value in values]


def test_jobs_with_other_variables_have_records_of_their_own(
    site: Started, files: Files, tmp_path: Path
) -> None:
    """For each value of MONARCH_SOURCE, one starter makes a record; later jobs with the same value
    need no starter."""
    (tmp_path / "elsewhere").write_text("x")
    (tmp_path / "more").mkdir()
    site.learn()
    sources = ["", str(files.root), str(tmp_path / "more")]
    jobs = [{"MONARCH_SOURCE": source} if source else {} for source in sources]

    def is_recorded(number: int) -> bool:
        return recorded(site) == sources[number::-1]

    for number, job in enumerate(jobs):
        assert site.run(CAT, tmp_path / "elsewhere", env=job).returncode == 0
        wait_until(partial(is_recorded, number), what="its record")
        site.wait_for_starter()
    assert (site.starts(), site.daemons()) == (0, []), "starts that were not needed must not count"
    assert counted(site) == len(jobs) - 1
    before = site.session.paths.autostart.read_bytes()
    site.session.paths.forget_starts()
    for job in (*jobs, *jobs):
        assert site.run(CAT, tmp_path / "elsewhere", env=job).returncode == 0
        assert counted(site) == 0
    assert site.session.paths.autostart.read_bytes() == before


def test_a_record_of_another_time_holds_no_more(
    site: Started, files: Files, tmp_path: Path
) -> None:
    """If the configuration has changed since it was recorded, a starter reads it again and replaces
    the record."""
    (tmp_path / "elsewhere").write_text("x")
    site.learn()
    before = site.session.paths.autostart.read_text()
    text = site.session.config.read_text()
    site.session.config.write_text(f"{text}# more\n")
    assert site.run(CAT, tmp_path / "elsewhere").returncode == 0
    wait_until(lambda: site.session.paths.autostart.read_text() != before, what="a new record")
    site.wait_for_starter()
    assert (recorded(site), counted(site)) == ([""], 1)


def test_the_latest_records_stay(site: Started, files: Files, tmp_path: Path) -> None:
    """The file of records keeps only the latest records: 16 short ones, or as many long ones as fit
    into 32 KiB. The long records of this test have about 3 kB each, so at least 8 of them fit."""
    (tmp_path / "elsewhere").write_text("x")
    long = f"{files.root}/{'./' * 1500}"
    for prefix, count, most in ((str(files.root), 17, 16), (long, 11, 8)):
        named = [f"{prefix}/{'./' * number}" for number in range(count)]
        for source in named:
            site.learn(MONARCH_SOURCE=source)
        kept = recorded(site)
        assert kept[:most] == named[::-1][:most]
        assert len(kept) <= 16
        assert site.session.paths.autostart.stat().st_size < 32768
        for source in (named[-1], kept[-1]):
            assert site.run(CAT, tmp_path / "elsewhere", env={"MONARCH_SOURCE": source}).stdout
            site.wait_for_starter()
            assert counted(site) == 0


def test_each_daemon_is_told_of_a_new_source_once(
    site: Started, files: Files, tmp_path: Path
) -> None:
    """MONARCH_SOURCE names a source that the daemon does not know. Only the first program with this
    setting tells the daemon about the source. When another daemon runs later, it is again only the
    first program that tells this daemon."""
    more = tmp_path / "more"
    more.mkdir()
    known, new = ({"MONARCH_SOURCE": each} for each in (str(files.root), f"{files.root}:{more}"))
    site.learn()
    for _ in range(2):
        site.session.paths.forget_starts()
        with site.session.start():
            for given, is_told in ((known, False), (new, True), (known, False), (new, False)):
                before = times(site)
                assert site.run("/bin/true", env=given).returncode == 0
                if is_told:
                    wait_until(partial(differs, site, before), what="a start")
                site.wait_for_starter()
                assert (times(site) != before) == is_told
            assert recorded(site) == [new["MONARCH_SOURCE"], ""]
            assert str(more) in site.session.connection.ask("where")["sources"]
