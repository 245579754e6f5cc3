"""Conversion of TOML tables to the options of a `Pool`, and merging of several tables.

Trackers (destinations of runs) are tables ``[trackers.NAME]``, and ``trackers = [...]`` of a pool.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...providers.registry import PROVIDERS, provider_class
from ...providers.shared.option_names import closest
from ...providers.shared.paths import expanded, half_url
from ..api.checks import check_known, one_of, refuse, shown
from ..api.errors import SpecError
from ..api.image import Image
from ..api.language import in_toml
from ..api.secrets import Secret
from ..api.settings import MOST, MachineOptions, Nodes, Spec, Worker
from ..pool_options import PoolOptions
from ..record.trackers.base import Tracker
from ..record.trackers.trackers import KINDS, new_tracker

if TYPE_CHECKING:
    from ..plugins.rank_layout import Ranks


Table = Mapping[str, Any]

POOL_KEYS = frozenset({*PoolOptions.__annotations__, "specs"})
# Options of the command `outrider run` that are not options of a pool.
RUN_KEYS = frozenset({"ranks_per_node", "max_restarts", "grace"})
GRACE_S, MOST_GRACE_S = 30.0, 3600.0  # default (as in torchrun) and maximum, in seconds
_IN_IMAGE = ("requirements", "lock")  # options of an image whose values are paths of files


def pool_options(table: Table, where: str) -> tuple[tuple[Spec, ...], PoolOptions]:
    """Return the specs and options in a pool's table, as `Pool` takes them. ``where``: the table's name, for errors.

    Raises:
        SpecError: A key or a value is not valid.
    """
    with telling(where):
        check_known("a pool", table, POOL_KEYS)
        options: Any = {key: _OPTIONS.get(key, _as_it_is)(value) for key, value in table.items()}
    return options.pop("specs", ()), options


@contextmanager
def telling(where: str) -> Iterator[None]:
    """Add the name of a table to each error that the ``with`` block raises."""
    try:
        yield
    except (SpecError, ValueError, TypeError) as error:
        raise SpecError(f"{where}: {in_toml(str(error))}") from error.__cause__


def merged(*tables: Table) -> dict[str, Any]:
    """Merge tables. A key of a later table overrides the same key of earlier tables.

    Three values are merged instead: images key by key, the images' environment variables name by name, and tables for
    the same provider key by key.
    """
    whole: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            whole[key] = _joined(key, whole[key], value) if key in whole else value
    return whole


def _joined(key: str, before: Any, after: Any) -> Any:
    if key == "provider":
        return _one_provider(before, after)
    if key != "image" or not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    joined = {**before, **after}
    envs = [each["env"] for each in (before, after) if "env" in each]
    if len(envs) == 2 and all(isinstance(each, Mapping) for each in envs):
        joined["env"] = {**envs[0], **envs[1]}
    return joined


def _one_provider(before: object, after: object) -> object:
    old, new = (each if isinstance(each, Mapping) else {"name": each} for each in (before, after))
    return {**old, **new} if new.get("name", old.get("name")) == old.get("name") else after


def at(table: Table, folder: Path) -> dict[str, Any]:
    """Return a pool's table with its relative paths made absolute, as if ``folder`` were the current folder."""
    moved = dict(table)
    image = table.get("image")
    if isinstance(image, Mapping):
        moved["image"] = {
            **image,
            **{key: _path(image[key], folder) for key in _IN_IMAGE if isinstance(image.get(key), str)},
        }
        # a text that is not a file in ``folder`` is the name of a module, and stays as it is
        if isinstance(includes := image.get("includes"), list):
            moved["image"]["includes"] = [_path_if_there(each, folder) for each in includes]
    checkpoints = table.get("checkpoints")
    if isinstance(checkpoints, str) and "://" not in checkpoints and not half_url(checkpoints):
        moved["checkpoints"] = _path(checkpoints, folder)
    if isinstance(trackers := table.get("trackers"), list):
        moved["trackers"] = [tracker_at(each, folder) if isinstance(each, Mapping) else each for each in trackers]
    return moved


def tracker_at(table: Table, folder: Path) -> Table:
    """Return a tracker's table; if its key "folder" has a relative path, make that path absolute.

    For a tracker class of the user's own, leave the key as it is, because it may have another meaning. The parameter
    ``folder`` is the folder from which relative paths start.
    """
    text = table.get("folder")
    if not isinstance(text, str) or not text or "://" in text or ":" in str(table.get("kind", "")):
        return table
    return {**table, "folder": _path(text, folder)}


def _path_if_there(value: object, folder: Path) -> object:
    if isinstance(value, str) and os.path.exists(folder / value):  # noqa: PTH110 - Path.exists may raise an OSError
        return _path(value, folder)
    return value


def _path(text: str, folder: Path) -> str:
    return str(folder / expanded(text))


# --- keys of `outrider run` -------------------------------------------------------------------------------------------


def ranks_of(table: Mapping[str, Any]) -> Ranks:
    ranks = table.get("ranks_per_node", "auto")
    if ranks != "auto" and (not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MOST):
        refuse(f'ranks_per_node takes "auto" or a number from 1 to {MOST:,}, not {shown(ranks)}.')
    return ranks  # type: ignore[no-any-return]


def restarts_of(table: Mapping[str, Any]) -> int:
    restarts = table.get("max_restarts", 0)
    if not isinstance(restarts, int) or isinstance(restarts, bool) or restarts < 0:
        refuse(f"max_restarts takes a whole number, at least 0, not {restarts!r:.60}.")
    return restarts


def grace_of(table: Mapping[str, Any]) -> float:
    """Return how many seconds ranks that handle SIGTERM have to save their state when the run is ended."""
    grace = table.get("grace", GRACE_S)
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= MOST_GRACE_S:
        refuse(f"grace takes seconds, from 0 to {MOST_GRACE_S:,.0f}, not {shown(grace)}.")
    return float(grace)


# --- values -----------------------------------------------------------------------------------------------------------


def _as_it_is(value: Any) -> Any:
    return value  # unchanged: `Pool` itself checks the value


def _provider(value: object) -> object:
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        refuse(f"provider takes a name, as in provider={_example(table)}, not {shown(value)}.")
    one_of("provider", table["name"], [*PROVIDERS])
    options = {key: each for key, each in table.items() if key != "name"}
    if table["name"] == "ssh":
        if "hosts" not in options:  # the user may have given the hosts under a wrong name: report that name
            check_known("SSH", options, list(inspect.signature(provider_class("ssh")).parameters))
        options["hosts"] = _hosts(options.get("hosts"))
    return _build(provider_class(table["name"]), options)


def _example(table: object) -> str:
    return "SSH(hosts=['gpu1', 'gpu2'])" if isinstance(table, Mapping) and "hosts" in table else "AWS(region=...)"


def _hosts(value: object) -> object:
    from ...providers.ssh import Host

    if value is None:
        refuse("the provider ssh needs hosts: SSH(hosts=['gpu1', 'gpu2']).")
    if isinstance(value, list):
        return [_build(Host, each) if isinstance(each, Mapping) else each for each in value]
    return value


def _build(kind: Callable[..., Any], options: Table, name: str = "") -> Any:
    check_known(name or kind.__name__, options, [each for each in inspect.signature(kind).parameters if each != "self"])
    return kind(**options)


def _nodes(value: object) -> object:
    if isinstance(value, Mapping):
        return _build(Nodes, value)
    return tuple(value) if isinstance(value, list) else value


def _accelerator(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    from ..api.accelerators import Accelerator

    return Accelerator.of_table(value)


def _worker(value: object) -> object:
    return _build(Worker, value) if isinstance(value, Mapping) else value


def _image(value: object) -> Image:
    if not isinstance(value, Mapping):
        container = f"; a container's image is Image(container={value!r})" if isinstance(value, str) else ""
        refuse(f"image takes a table, as in Image(pip=['numpy']), not {shown(value)}{container}.")
    options = dict(value)
    if isinstance(env := options.get("env"), Mapping):
        options["env"] = {name: _secret(each) for name, each in env.items()}
    if isinstance(indexes := options.get("pip_indexes"), list):
        options["pip_indexes"] = [_secret(each) for each in indexes]
    image: Image = _build(Image, options)
    return image


def _secret(value: object) -> Any:
    """Convert ``{ secret = "HF_TOKEN" }`` to the secret in that environment variable of this process.

    Return other values unchanged.
    """
    match value:
        case {"secret": str(name), **more} if not more:
            return Secret.env(name)
        case _:
            return value


def _plugins(value: object) -> object:
    from ..plugins.registry import plugins

    if not isinstance(value, list):
        refuse(f"plugins takes a list, as in plugins=[plugins.torch()], not {shown(value)}.")
    chosen = []
    for each in value:
        table = {"name": each} if isinstance(each, str) else each
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            how = "plugins=[plugins.torch(ranks_per_node=2)]"
            refuse(f"plugins takes names, or tables with a name, as in {how}, not {shown(each)}.")
        try:
            factory = getattr(plugins, table["name"])
        except AttributeError as error:
            refuse(str(error))
        chosen.append(factory(**{key: option for key, option in table.items() if key != "name"}))
    return chosen


def _volumes(value: object) -> object:
    from ..api.volume import Volume

    def volume(table: object) -> Volume:
        if not isinstance(table, Mapping):
            refuse(f"volumes takes tables, as in Volume('s3://bucket', mount='/data'), not {shown(table)}.")
        options = dict(table)
        if isinstance(credentials := options.get("credentials"), Mapping):
            options["credentials"] = {name: _secret(each) for name, each in credentials.items()}
        built: Volume = _build(Volume, options)
        return built

    return [volume(each) for each in value] if isinstance(value, list) else value


def _specs(value: object) -> tuple[Spec, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(each, Mapping) for each in value):
        refuse(f"specs takes tables, as in Spec(AWS(), vcpus=8), not {shown(value)}.")
    for each in value:
        check_known("Spec", each, MachineOptions.__annotations__)
    tables: list[dict[str, Any]] = [dict(each) for each in value]
    for table in tables:
        for key, read in (("provider", _provider), ("accelerator", _accelerator)):
            if key in table:
                table[key] = read(table[key])
    return tuple(Spec(**table) for table in tables)


def _chaos(value: object) -> object:
    from ...testing.fault_injection.options import Chaos

    return _build(Chaos, value) if isinstance(value, Mapping) else value


def _trackers(value: object) -> object:

    return trackers_of(value)


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "provider": _provider,
    "accelerator": _accelerator,
    "nodes": _nodes,
    "worker": _worker,
    "image": _image,
    "plugins": _plugins,
    "volumes": _volumes,
    "specs": _specs,
    "chaos": _chaos,
    "trackers": _trackers,
}


Tables = Mapping[str, Mapping[str, Any]]


def with_tables(trackers: object, tables: Tables) -> object:
    """Return a pool's ``trackers``. A name for which the file has a table is replaced by that table."""
    if not isinstance(trackers, list):
        return trackers
    return [named_table(each, tables) if isinstance(each, str) and each in tables else each for each in trackers]


def named_table(name: str, tables: Tables) -> Mapping[str, Any]:
    """Return the table of the tracker ``name``, with this name as its key "name" unless the table has another one."""
    return {"name": name, **tables[name]}


def trackers_of(value: object) -> list[Tracker]:
    """Create the trackers of a pool, such as ``trackers = ["mlflow", { kind = "webhook", url = ... }]``.

    Raises:
        SpecError
    """
    if isinstance(value, str) or not isinstance(value, list | tuple):
        refuse(f'trackers takes a list, as in trackers = ["mlflow"], not {shown(value)}.')
    return [each if isinstance(each, Tracker) else tracker_of(each) for each in value]


def tracker_of(value: object) -> Tracker:
    """Create a tracker.

    ``value``: the name of its kind, or a table with ``kind`` (or with ``name``, if that is a kind).

    Raises:
        SpecError
    """
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        refuse(f'trackers takes names, or tables as {{ kind = "mlflow", experiment = "digits" }}, not {shown(value)}.')
    kind = table.get("kind", table.get("name"))
    if not isinstance(kind, str) or (kind not in KINDS and ":" not in kind):
        known = ", ".join(map(repr, KINDS))
        meant = closest(kind, KINDS) if isinstance(kind, str) else ""
        hint = f"did you mean {meant!r}?" if meant else "[trackers.NAME] tells it."
        refuse(f"a tracker's kind is one of {known}, or 'module:Class', not {shown(kind)}: {hint}")
    return new_tracker(kind, {key: _value(each) for key, each in table.items() if key != "kind"})


def _value(value: object) -> Any:
    match value:
        case {"secret": str(name), **more} if not more:
            return Secret.env(name)
        case Mapping():
            return {key: _value(each) for key, each in value.items()}
        case _:
            return value
