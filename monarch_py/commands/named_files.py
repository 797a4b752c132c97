"""Examines the packs and plans of a configuration. A daemon reads these files when it starts.

A pack is a tar of a source's files. A plan lists every access of a training run.
"""

from collections.abc import Iterator
from pathlib import Path

from monarch_py.commands.switches import Finding
from monarch_py.config.schema import Config
from monarch_py.errors import MonarchError
from monarch_py.packs.index import PackIndex


def named_files(config: Config) -> Iterator[Finding]:
    """Yields a finding for each pack and each plan. A plan that cannot be read is a problem,
    because a daemon cannot start with such a plan. A pack that cannot be used is only a warning,
    because a daemon works without the pack. A plan that does not fit the sources is only a warning
    too."""
    for source in config.sources:
        if source.pack is not None:
            yield _pack(source.pack)
    for plan in config.plans:
        yield _plan(plan, config)


def _pack(pack: Path) -> Finding:
    try:
        text = f"{pack}: {len(PackIndex.load(pack)):,} files"
        pack.open("rb").close()
        return Finding("ok", "pack", text)
    except OSError as error:
        problem, hint = f"{pack}: {error.strerror}", "make the file readable for you"
    except MonarchError as error:
        problem, _, hint = str(error).rpartition("; ")
    text = f"not used, and files are read one by one: {problem}"
    return Finding("warning", "pack", text, hint)


def _plan(file: Path, config: Config) -> Finding:
    from monarch_py.daemon.plans.manager import load_plan  # only here: loads daemon code
    from monarch_py.daemon.plans.placement import source_of

    try:
        _, plan = load_plan(file, 1)
    except MonarchError as error:
        problem, _, hint = str(error).rpartition("; ")
        return Finding("problem", "plan", problem, hint)
    for index in plan.datasets:
        _, problem = source_of(index, config.sources)
        if problem and config.sources:
            hint = "make it from an index of a source (`monarch plan index`)"
            return Finding("warning", "plan", f"not followed: {file}: {problem}", hint)
    return Finding("ok", "plan", f"{file}: {sum(index.files for index in plan.datasets):,} files")
