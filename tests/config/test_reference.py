"""Tests the tables of the documentation's pages, and the JSON schema. Both are generated from the
declaration of the keys."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from config.conftest import Site
from config.test_load import EXAMPLES
from jsonschema import Draft202012Validator
from support.reference import DOCS, MODULES, written

from monarch_py.cli import group
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config, Tuning
from monarch_py.plan.builders import index_files
from monarch_py.plan.recipe import plan_of, read_recipe
from monarch_py.simulator.keys import load_scenario
from monarch_py.yaml_files.keys import Keys, declared, schema

SMALLEST: dict[str, Any] = {
    "sources": ["@/pfs"],
    "hierarchy": [{"mount_point": "@/ssd", "max_storage_quota": "1MiB"}],
}
READ: dict[str, Callable[[Path], object]] = {
    "configuration.md": load_config,
    "plan.md": lambda path: plan_of(*read_recipe(path)),
    "scenarios.md": load_scenario,
}
VALIDATOR = Draft202012Validator(schema(Config))


def classes(page: str) -> list[type[Keys]]:
    """Returns the classes whose keys a page shows."""
    found = [kind for _, kind in inspect.getmembers(MODULES[page], inspect.isclass)]
    return [kind for kind in found if issubclass(kind, Keys) and kind is not Keys]


@pytest.mark.parametrize("page", MODULES)
def test_the_page_shows_what_is_declared(page: str) -> None:
    assert written(page) == (DOCS / page).read_text(), "run `python -m support.reference`"
    shown = re.findall(r"<!-- keys: (\w+) -->", written(page))
    assert sorted(shown) == sorted(kind.__name__ for kind in classes(page))


@pytest.mark.parametrize("kind", [kind for page in MODULES for kind in classes(page)])
def test_every_key_has_a_meaning(kind: type[Keys]) -> None:
    assert [each.name for each in declared(kind).values() if not each.meaning] == []


def by_example(page: str) -> list[str]:
    """Returns the YAML examples from one section of the page: the section that shows every key."""
    section = (DOCS / page).read_text().partition(f"<!-- example: {page} -->")[2]
    return re.findall(r"^```yaml\n(.*?)^```", section.partition("\n## ")[0], re.M | re.S)


def keys_in(value: Any) -> Iterator[str]:
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from keys_in(inner)
    if isinstance(value, dict):
        yield from map(str, value)


@pytest.mark.parametrize("page", MODULES)
def test_every_key_has_an_example(page: str) -> None:
    shown = {key for text in by_example(page) for key in keys_in(yaml.safe_load(text))}
    for kind in classes(page):
        assert [name for name in declared(kind) if name not in shown] == [], kind


@pytest.mark.parametrize("page", MODULES)
def test_the_examples_can_be_used(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pfs/imagenet/train", "pfs/coco", "local/me", "shm"):
        (tmp_path / name).mkdir(parents=True)
    pfs = tmp_path / "pfs"
    for name in ("imagenet.tar", "imagenet.tar.monarch", "plan.yaml"):
        (pfs / name).touch()
    for number in range(8):
        (pfs / f"imagenet/train/{number}").write_bytes(bytes(1000))
    index_files(pfs / "imagenet").save(pfs / "train.npz")
    (pfs / "node.yaml").write_text("pfs: {1: 300MiB/s}\nrates: {network: 1GiB/s}\n")
    # A state of torch's random generator. One of its 624 numbers is still unused.
    state = bytearray(5056)
    state[8], state[24:5016:8] = 1, bytes([7]) * 624
    (pfs / "state").write_bytes(state)
    (pfs / "subset.txt").write_text("".join(f"{number}\n" for number in range(32)))
    (pfs / "weights.txt").write_text("".join(f"{number}\n" for number in range(1, 65)))
    file = tmp_path / page.replace(".md", ".yaml")
    for text in by_example(page):
        here = re.sub(r"(?<=[ {])/(?:dev/)?(pfs|local|shm)\b", rf"{tmp_path}/\1", text)
        if "\nlimits:" in here:
            (tmp_path / "site.yaml").write_text(here)
            monkeypatch.setenv("MONARCH_SITE_CONFIG", str(tmp_path / "site.yaml"))
            here = f"sources: {pfs}/coco\n"
        file.write_text(here)
        READ[page](file)


def test_a_default_lies_within_its_bounds() -> None:
    """The declared default of each tuning key conforms to the schema. Nothing else checks the
    defaults, because they are not read from a file."""
    at_default = {name: each.field.default for name, each in declared(Tuning).items()}
    VALIDATOR.validate({**SMALLEST, "tuning": at_default})


def test_the_page_names_every_key_of_the_original() -> None:
    text = (DOCS / "configuration.md").read_text()
    for kind in classes("configuration.md"):
        aliases = [alias for each in declared(kind).values() for alias in each.key.aliases]
        for name in (*aliases, *kind.IGNORED, *kind.WRAPPERS):
            assert f"`{name}`" in text


# --- the schema ----------------------------------------------------------------------------------


def test_the_command_prints_a_schema() -> None:
    done = CliRunner().invoke(group, ["config", "schema"])
    assert done.exit_code == 0
    printed = json.loads(done.output)
    Draft202012Validator.check_schema(printed)
    assert printed == json.loads(json.dumps(schema(Config)))
    tuning = printed["properties"]["tuning"]["properties"]
    assert set(tuning) == set(declared(Tuning))
    assert tuning["min_reads"]["description"].startswith("the lower bound of the limit on reads")
    assert not set(tuning) & set(printed["properties"])


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_schema_takes_the_examples(example: str) -> None:
    VALIDATOR.validate(yaml.safe_load(example))


@pytest.mark.parametrize(
    "change",
    [
        {"placment": "first_fit"},
        {"min_reads": 4},
        {"tuning": {"min_reads": 0}},
        {"tuning": {"min_reads": 257}},
        {"tuning": {"scan_rate": 5}},
        {"prefetch": "all"},
        {"version": 2},
        {"hierarchy": [{"max_storage_quota": 1}]},
        {"sources": [{"min_size": 1}]},
        {"peers": {"port": 65536}},
        {"scan_rate": "fast"},
        {"hierarchy": [{**SMALLEST["hierarchy"][0], "persistent": "maybe"}]},
        {"hierarchy": [{**SMALLEST["hierarchy"][0], "persistent": 1}]},
        {"scan_rate": "1e3"},
        {"scan_rate": "1.0"},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(site: Site, change: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(SMALLEST)
    site.load(yaml.safe_dump(SMALLEST))
    assert not VALIDATOR.is_valid({**SMALLEST, **change})
    site.refusal(yaml.safe_dump({**SMALLEST, **change}))


@pytest.mark.parametrize("change", [{"scan_rate": "007"}, {"scan_rate": 7}, {"prefetch": "eager"}])
def test_both_take_what_is_right(site: Site, change: dict[str, Any]) -> None:
    VALIDATOR.validate({**SMALLEST, **change})
    site.load(yaml.safe_dump({**SMALLEST, **change}))
