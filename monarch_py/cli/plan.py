"""The command plan: index, make, show."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monarch_py.cli.options import as_json, as_size, examples, refuse_input
from monarch_py.cli.screen import print_table
from monarch_py.util.units import counted, format_size
from monarch_py.yaml_files.keys import named_paths

if TYPE_CHECKING:
    from monarch_py.commands.figures import Figures
    from monarch_py.plan.plan import Plan

# What tables and pictures call the three places in `figures.PLACES`.
PLACES = ("own copies", "other nodes", "source")
KINDS = ("image_folder", "files", "tfrecord", "webdataset", "hdf5", "fixed")
# The only kind to which each of these options applies.
OPTIONS = {"--dataset": "hdf5", "--record-bytes": "fixed", "--header-bytes": "fixed"}

_PATH = click.Path(path_type=Path)


@click.group(short_help="Compute every access of a training run in advance.")
def plan() -> None:
    """Compute every access of a training run in advance: what is read, by which rank, and when."""


def _needed(value: Any, option: str, kind: str) -> Any:
    if value is None:
        raise click.UsageError(f"{kind} needs {option}.")
    return value


@plan.command(epilog=examples("monarch plan index image_folder /pfs/imagenet/train -o train.npz"))
@click.argument("kind", metavar="KIND", type=click.Choice(KINDS))
@click.argument("root", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="The index to write (.npz).")
@click.option(
    "--pattern",
    multiple=True,
    help="Which files below ROOT to index; not for the KIND image_folder.  [default: depends on"
    " KIND]",
)
@click.option("--dataset", help="If KIND is hdf5: the dataset whose rows are the samples.")
@click.option("--record-bytes", type=int, help="If KIND is fixed: the size of a record.")
@click.option(
    "--header-bytes",
    type=int,
    help="If KIND is fixed: the number of bytes before the first record.",
)
def index(
    *,
    kind: str,
    root: Path,
    output: Path,
    pattern: tuple[str, ...],
    dataset: str | None,
    record_bytes: int | None,
    header_bytes: int | None,
) -> None:
    """Find the position of each sample of a dataset.

    KIND is image_folder, files, tfrecord, webdataset, hdf5 or fixed (records of one size).

    The samples are numbered as the usual readers number them. Files are sorted by path. The samples
    of a file keep their order. The classes of an ImageFolder are sorted by name.
    """
    from monarch_py.plan import builders

    if pattern and kind == "image_folder":
        raise click.UsageError(
            "the kind image_folder indexes every image below ROOT; leave out --pattern"
        )
    for (option, own), value in zip(
        OPTIONS.items(), (dataset, record_bytes, header_bytes), strict=True
    ):
        if value is not None and kind != own:
            raise click.UsageError(f"{option} is only for the kind {own}; leave it out")
    patterns = pattern or builders.PATTERNS.get(kind, ())
    root = root.absolute()
    try:
        if kind == "image_folder":
            found = builders.index_image_folder(root)
        elif kind == "hdf5":
            name = _needed(dataset, "--dataset", kind)
            found = builders.index_hdf5(root, name, patterns)
        elif kind == "fixed":
            size = _needed(record_bytes, "--record-bytes", kind)
            found = builders.index_fixed(root, size, header_bytes or 0, patterns)
        else:
            found = getattr(builders, f"index_{kind}")(root, patterns)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--pattern") from None
    place, real = os.path.realpath(output), os.path.realpath(root)
    indexed = (root / name for name in found.names() if os.path.join(real, name) == place)
    refuse_input("-o", output, indexed)
    found.save(output)
    click.echo(
        f"{found.samples} samples in {found.files} files"
        f" ({format_size(int(found.sizes.sum()))}), digest {found.digest()}"
    )


@plan.command(epilog=examples("monarch plan make -c plan.yaml -o plan.npz"))
@click.option(
    "-c", "--config", "recipe", type=_PATH, required=True, help="The description (plan.yaml)."
)
@click.option("-o", "--output", type=_PATH, required=True, help="The plan to write (.npz).")
def make(recipe: Path, output: Path) -> None:
    """Make a plan from its description."""
    from monarch_py.plan.recipe import plan_of, read_recipe
    from monarch_py.policies.holding import with_holders

    keys, top = read_recipe(recipe)
    refuse_input("-o", output, [recipe, *named_paths(keys)])
    made = with_holders(plan_of(keys, top))
    made.save(output)
    click.echo(_summary(made))


def _summary(plan: Plan) -> str:
    timeline = plan.timeline()
    parts = ", ".join(
        f"{part.name} ({plan.datasets[part.dataset].samples} samples,"
        f" {part.loader.steps} steps of {part.loader.batch_size} on each rank)"
        for part in plan.parts
    )
    return (
        f"{counted(plan.epochs, 'epoch')} on {counted(plan.nodes, 'node')} with"
        f" {counted(timeline.ranks_per_node, 'rank')} each,"
        f" {timeline.units} {plan.grain}: {parts}"
    )


@plan.command(
    short_help="Show how often files are read, and from where.",
    epilog=examples("monarch plan show plan.npz --quota 200GiB"),
)
@click.argument("plan_file", metavar="PLAN", type=_PATH)
@click.option("--node", default=0, show_default=True, help="The node whose frequencies are shown.")
@click.option(
    "--quota", callback=as_size, help="Room for copies on each node.  [default: enough for all]"
)
@click.option(
    "--plot", "picture", type=_PATH, metavar="FILE", help="Also draw the figures; needs matplotlib."
)
@as_json
def show(
    *, plan_file: Path, node: int, quota: int | None, picture: Path | None, as_json: bool
) -> None:
    """Show how often a node reads each file, how many files each node owns, and where bytes come
    from."""
    from monarch_py.commands.figures import figures_of
    from monarch_py.plan.recipe import read_plan
    from monarch_py.policies.holding import with_holders

    if picture is not None:
        refuse_input("--plot", picture, [plan_file])
    loaded = with_holders(read_plan(plan_file))
    figures = figures_of(loaded, node, quota)
    if picture is not None:
        _draw(figures, picture)
    if as_json:
        described = {"digests": loaded.digests(), "epochs_planned": loaded.epochs}
        click.echo(json.dumps({**described, **figures.as_dict()}, indent=2))
    else:
        click.echo(_summary(loaded))
        _print(figures, loaded.grain)


def _print(figures: Figures, grain: str) -> None:
    expected = figures.expected
    counts = [
        [k, n, "" if expected is None else f"{expected[k]:.0f}"]
        for k, n in enumerate(figures.frequency.tolist())
    ]
    click.echo()
    title = f"How often node {figures.node} accesses the {grain}"
    print_table(title, ["accesses", grain, "expected"], counts, left=0)
    if expected is not None:
        click.echo("'expected' is the number if the samples of each epoch were drawn at random.")
    click.echo(f"Standard deviation of the number of accesses: {figures.spread:.3f} of the mean.")
    owned, sizes = figures.owned_units, figures.owned_bytes
    click.echo(
        f"Each node owns {_range(str(owned.min()), str(owned.max()))} {grain}, with a total size"
        f" of {_range(format_size(int(sizes.min())), format_size(int(sizes.max())))}."
    )
    click.echo()
    rows = [[k, *map(format_size, read)] for k, read in enumerate(figures.epochs.tolist())]
    columns = ["epoch", *PLACES]
    print_table("Bytes that all nodes read in each epoch, by origin", columns, rows, left=0)


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _draw(figures: Figures, picture: Path) -> None:
    from monarch_py.simulator.plot import can_draw, save, stacked_bars

    can_draw(picture)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    axes[0].bar(range(len(figures.frequency)), figures.frequency)
    if figures.expected is not None:
        shown = figures.expected[: len(figures.frequency)]
        axes[0].plot(range(len(shown)), shown, "k.", label="binomial")
        axes[0].legend()
    axes[0].set(title=f"Frequencies on node {figures.node}", xlabel="accesses", ylabel="files")
    axes[1].bar(range(len(figures.owned_bytes)), figures.owned_bytes / 2**30)
    axes[1].set(title="Who owns what", xlabel="node", ylabel="GiB")
    read = (figures.epochs / 2**30).T.tolist()
    stacked_bars(axes[2], dict(zip(PLACES, read, strict=True)), width=1)
    axes[2].set(title="Bytes by source", xlabel="epoch", ylabel="GiB")
    axes[2].legend(loc="center right")
    save(figure, picture)
