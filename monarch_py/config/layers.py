"""The layers of a configuration: the site's file, the user's file, the environment, the command
line.

The value of a key comes from the last layer that sets the key. The keys of an inner mapping, such
as `source_limits`, may come from different layers. A list, such as `sources` or `hierarchy`, comes
entirely from one layer.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from monarch_py.config.schema import Config, SourceConfig, TierConfig
from monarch_py.errors import ConfigError
from monarch_py.yaml_files.keys import Keys, all_declared, declared, read_given
from monarch_py.yaml_files.nodes import Document, KeyPath, Spot, load_document

# The environment variables that name the user's configuration file, the site's configuration file,
# and the datasets of a job.
USER, SITE, SOURCES = "MONARCH_CONFIG", "MONARCH_SITE_CONFIG", "MONARCH_SOURCE"
# The end of hints in error messages about the site's configuration file and the site's limits.
ASK = "or ask your site's administrator"
# The path of the site's configuration file, relative to the installation, if SITE is not set.
SITE_FILE = Path("etc/monarch/site.yaml")
OPTION = "--source"


@dataclass(frozen=True, slots=True)
class Layer:
    """The values that one layer sets.

    name : "site", "user", "environment" or "command line"
    given : name of a field of Config -> its value in this layer
    top : the position of the layer's outermost mapping, for error messages
    """

    name: str
    given: dict[str, Any]
    top: Spot


@dataclass(frozen=True, slots=True)
class Layers:
    """All layers of a configuration, the lowest first, and their merged values.

    given : name of a field of Config -> its merged value
    top : the position of the outermost mapping, for error messages. The position's document has no
        text, but records where each key and each list item of `given` is written
    file : the file that identifies the daemon's session. It is the user's file. If there is no
        user's file, or if only the site's file has tiers, it is the site's file
    """

    layers: tuple[Layer, ...]
    given: dict[str, Any] = field(default_factory=dict)
    top: Spot = Spot(Document(""), 0)  # noqa: RUF009
    file: Path = Path()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that were read."""
        return tuple(Path(each.top.document.name) for each in self.layers if each.top.line)

    @property
    def warnings(self) -> tuple[str, ...]:
        own = self.top.document
        documents = [each.top.document for each in self.layers]
        return tuple(text for each in (*documents, own) for text in each.warnings)

    @property
    def lack_sources(self) -> bool:
        """Whether the site's file is the only layer, and names no dataset. Such a configuration is
        valid: the site lets its users choose the datasets."""
        return "sources" not in self.given and all(each.name == "site" for each in self.layers)

    def of(self, spot: Spot) -> str:
        """The name of the layer that contains the position `spot`."""
        return next(each.name for each in self.layers if each.top.document is spot.document)


def installation() -> Path | None:
    """The directory that contains the installation's `bin`; None if Monarch runs from a
    checkout."""
    packages = Path(__file__).resolve().parents[2]  # lib/python3.11/site-packages
    is_installed = packages.name in ("site-packages", "dist-packages")
    return packages.parents[2] if is_installed else None


def site_file() -> Path | None:
    """The path of the site's configuration file; None if there is no such file, or if
    MONARCH_SITE_CONFIG is set but empty."""
    named = os.environ.get(SITE)
    if named is not None:
        return Path(named) if named else None
    place = installation()
    found = None if place is None else place / SITE_FILE
    return found if found is not None and found.is_file() else None


def default_file() -> Path | None:
    """Returns the file that MONARCH_CONFIG names, or else the site's file; None if there is
    neither. Call this function if the command line names no configuration."""
    named = os.environ.get(USER)
    return Path(named) if named else site_file()


def read_layers(path: Path, sources: Sequence[Path] = ()) -> Layers:
    """Reads all layers of a configuration.

    path : the user's file, or the site's file
    sources : the datasets that the command line names

    Raises ConfigError if a file cannot be read, or if a key or a value does not fit.
    """
    site, layers = site_file(), []
    for file in filter(None, (site, path)):
        # If the file cannot be examined, the read below raises an error that names the reason.
        with suppress(OSError):
            if stat.S_ISFIFO(os.stat(file).st_mode):
                raise ConfigError(
                    f"{file}: is a pipe, but each command and the daemon read the configuration"
                    " again; write it to a file"
                )
    if site is not None:
        layers.append(_file_layer("site", site, "site's configuration"))
    if site is None or os.path.realpath(site) != os.path.realpath(path):
        layers.append(read_user_file(path))
    for name, where, found in (
        ("environment", SOURCES, [each for each in os.environ.get(SOURCES, "").split(":") if each]),
        ("command line", OPTION, [str(each).replace("$", "$$") for each in sources]),
    ):
        if found:
            layers.append(_sources_layer(name, where, found))
    return _together(layers)


def read_user_file(path: Path) -> Layer:
    """Reads only a user's file, without the other layers. Raises ConfigError if the file cannot be
    read, or if a key or a value does not fit."""
    return _file_layer("user", path, "configuration")


def _file_layer(name: str, path: Path, kind: str) -> Layer:
    is_others = name == "site" and not os.access(path, os.W_OK)
    otherwise = f", {ASK}" if is_others else ""
    root, top = load_document(path, kind, "'sources' and 'hierarchy'", otherwise)
    given = read_given(root, top, Config)
    if name == "user" and "limits" in top:
        raise top.of("limits").error(
            "only the site's configuration may have limits",
            f"remove the key, or set {SITE} to this file if it is the site's configuration",
        )
    for number, tier in enumerate(given.get("tiers", ())):
        _warn_of_block_size(tier, top.of("hierarchy").of(number))
    _take_source_from_hierarchy(given, top)
    return Layer(name, given, top)


def _sources_layer(name: str, where: str, paths: Sequence[str]) -> Layer:
    """Returns the layer for the datasets that an environment variable or a command-line option
    names. The positions of these values have no line numbers."""
    at = yaml.Mark(where, 0, -1, 0, None, 0)
    items = [yaml.ScalarNode("tag:yaml.org,2002:str", path, at, at) for path in paths]
    key = yaml.ScalarNode("tag:yaml.org,2002:str", "sources", at, at)
    value = yaml.SequenceNode("tag:yaml.org,2002:seq", items, at, at)
    root = yaml.MappingNode("tag:yaml.org,2002:map", [(key, value)], at, at)
    top = Spot(Document(where), 0)
    return Layer(name, read_given(root, top, Config), top)


def _take_source_from_hierarchy(given: dict[str, Any], top: Spot) -> None:
    """If the last level of the hierarchy has no quota, makes this level the source instead of a
    tier. In configurations of the original Monarch, the last level is the dataset."""
    tiers = given.get("tiers", ())
    level = top.of("hierarchy").of(len(tiers) - 1)
    if not tiers or "max_storage_quota" in level:
        return
    if "sources" in top:
        raise level.of("max_storage_quota").error(
            "is missing, and 'sources' already says where the datasets are",
            "add a quota if this is a tier, or remove this level",
        )
    *others, last = tiers
    for name, is_meant in (("persistent", last.persistent), ("eviction", last.eviction != "none")):
        if is_meant:
            level.of(name).warn("ignored: a level without a quota is the source")
    given["sources"], given["tiers"] = (SourceConfig(last.mount_point),), tuple(others)
    spots, spot = top.document.spots, level.of("mount_point")
    for key_path in (("sources",), ("sources", 0), ("sources", 0, "path")):
        spots[key_path] = spot


def _warn_of_block_size(tier: TierConfig, level: Spot) -> None:
    """Warns if a level sets its own block size, as in configurations of the original Monarch. The
    value is ignored, because checksums need the same block size for all copies."""
    if tier.level_block_bytes:
        level.of("block_size").warn(
            "ignored: all copies are made in blocks of one size; write block_size at the top"
        )


# --- putting layers together ---------------------------------------------------------------------


def _together(layers: Sequence[Layer]) -> Layers:
    file = next(each for each in reversed(layers) if each.top.line)
    with_tiers = [each for each in layers if "tiers" in each.given] or [file]
    given: dict[str, Any] = {}
    spots: dict[KeyPath, Spot] = {}
    for layer in layers:
        for name, each in all_declared(Config).items():
            if each.field.name in layer.given:
                _lay_over(given, spots, layer, name, each.field.name)
    top = Spot(Document(file.top.document.name, spots=spots), file.top.line)
    session = Path(os.path.abspath(with_tiers[-1].top.document.name))
    return Layers(tuple(layers), given, top, session)


def _lay_over(
    given: dict[str, Any], spots: dict[KeyPath, Spot], layer: Layer, name: str, attribute: str
) -> None:
    """Replaces the value of the key `name` in `given` by the value in `layer`. If the value is an
    inner mapping, replaces only the inner keys that `layer` sets.

    spots : where each value of `given` is written; the entries of this key are replaced too
    attribute : the name of the field of Config for this key
    """
    value, below = layer.given[attribute], given.get(attribute)
    ours = {
        key_path: at for key_path, at in layer.top.document.spots.items() if key_path[:1] == (name,)
    }
    if isinstance(value, Keys) and isinstance(below, Keys):
        inner = declared(type(value)).items()
        kept = {each.field.name: getattr(below, each.field.name) for key, each in inner
                if (name, key) not in ours}  # fmt: skip
        value = replace(value, **kept)  # type: ignore[type-var]
    else:
        if name == "sources":
            value = _as_described(value, below or (), spots, ours)
        for key_path in [key_path for key_path in spots if key_path[:1] == (name,)]:
            del spots[key_path]
    given[attribute] = value
    spots.update(ours)


def _as_described(
    named: Sequence[SourceConfig],
    below: Sequence[SourceConfig],
    spots: dict[KeyPath, Spot],
    ours: dict[KeyPath, Spot],
) -> tuple[SourceConfig, ...]:
    """Returns the datasets of a layer. The layer may give only the path of a dataset that a lower
    layer describes. If so, returns the lower layer's entry. Then also adds the positions of this
    entry's keys to `ours`, so that error messages can say where the keys are written.

    named, ours : the layer's datasets, and where the layer's keys are written
    below, spots : the lower layers' datasets, and where the lower layers' keys are written
    """
    known = {source.path: (number, source) for number, source in enumerate(below)}
    found = []
    for at, source in enumerate(named):
        is_plain = source == SourceConfig(source.path)
        number, described = known.get(source.path, (-1, source)) if is_plain else (-1, source)
        for key_path, spot in spots.items():
            if key_path[:2] == ("sources", number):
                ours.setdefault(("sources", at, *key_path[2:]), spot)
        found.append(described)
    return tuple(found)


def no_configuration() -> ConfigError:
    """The error to raise if neither the user nor the site has a configuration."""
    return ConfigError("no configuration is named; give -c tiers.yaml or set MONARCH_CONFIG")


def no_dataset(site: Path) -> ConfigError:
    """The error to raise if neither the site's configuration nor the user names a dataset."""
    return ConfigError(
        f"no dataset is named, and {site} names none either; set MONARCH_SOURCE=/the/dataset, or"
        " give --source /the/dataset"
    )
