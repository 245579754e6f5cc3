"""`outrider config check`: reports all errors of a configuration file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import DONE, WRONG, AsJson

if TYPE_CHECKING:
    from ..config.check import CheckedPool


def config_check(file: Path | None = None, /, *, as_json: AsJson = False) -> int:
    """Check outrider.toml, or [tool.outrider] in a pyproject.toml, and show the settings of its pools.

    Reports all errors at once: unknown keys (with the key that was probably meant), invalid values, missing files, and
    environment variables of secrets that are not set. Trackers are checked even if no pool uses them. Of each pool, the
    settings that differ from their defaults are shown; secrets are hidden. Nothing is started, and no cloud is
    contacted.

    Exits with 0 if everything is in order, and with 2 if there is an error.

    Example: `outrider config check outrider.toml`

    Parameters
    ----------
    file:
        The file to check. Default: the nearest one, in this folder or a folder above.
    as_json:
        Print the result and all settings as JSON, for programs.
    """
    from ..api.checks import refuse
    from ..config.check import checked_pool, checked_tracker
    from ..config.files import OWN, SHARED, find, read

    config = find(Path.cwd()) if file is None else read(file)
    if config is None:
        refuse(f"there is no {OWN}, and no {SHARED} with [tool.outrider], in {Path.cwd()} or above: name a file.")
    pools = [checked_pool(config, name) for name in config.pools]
    trackers = {name: checked_tracker(config, name) for name in config.trackers}
    if as_json:
        rows = {pool.name: _row(pool) for pool in pools}
        tracker_rows = {name: {"problems": list(problems)} for name, problems in trackers.items()}
        print(json.dumps({"file": str(config.path), "pools": rows, "trackers": tracker_rows}, indent=2))
    else:
        if not pools:
            print(f"{config.path} names no pool: write [{config.prefix}pools.default].")
        for pool in pools:
            _show(config.where(pool.name), pool.problems, pool.changed)
        for name, problems in trackers.items():
            _show(config.where(name, "trackers"), problems, {})
    return WRONG if any(pool.problems for pool in pools) or any(trackers.values()) else DONE


def _row(pool: CheckedPool) -> dict[str, Any]:
    return {"problems": list(pool.problems), "settings": dict(pool.settings) or None}


def _show(where: str, problems: Sequence[str], settings: Mapping[str, Any]) -> None:
    from ..api.printable import plain

    for problem in problems:
        print(plain(f"outrider: {where}: {problem}"), file=sys.stderr)
    if problems:
        return
    print(f"{where} is in order")
    for name, value in settings.items():
        print(plain(f"  {name} = {json.dumps(_short(value))}"))


def _short(value: Any) -> Any:
    """Return a setting without its empty parts (None, 0, empty texts, lists and tables), which only repeat defaults."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _short(each) for name, each in value.items() if each not in (None, [], {}, 0, "") or each is False}
