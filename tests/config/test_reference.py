"""What is made from the declaration of the keys: the pages' tables and the JSON schema."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from config.conftest import Site
from config.test_load import EXAMPLES
from jsonschema import Draft202012Validator
from support.reference import DOCS, MODULES, written

from monarch_py.cli import group
from monarch_py.config.schema import Config, Tuning
from monarch_py.document.keys import Keys, declared, schema

SMALLEST: dict[str, Any] = {
    "sources": ["@/pfs"],
    "hierarchy": [{"mount_point": "@/ssd", "max_storage_quota": "1MiB"}],
}
VALIDATOR = Draft202012Validator(schema(Config))


def classes(page: str) -> list[type[Keys]]:
    """Whose keys a page shows."""
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


def test_a_default_lies_within_its_bounds() -> None:
    """The declaration itself is read from no file, and is not checked otherwise."""
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
    assert tuning["min_reads"]["description"].startswith("the fewest reads")
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
