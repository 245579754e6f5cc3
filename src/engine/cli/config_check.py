"""`outrider config check`: reports all errors of a configuration file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exit_codes import DONE, WRONG
from .flags import AsJson

if TYPE_CHECKING:
    from ..config.check import CheckedPool


def config_check(file: Path | None = None, /, *, as_json: AsJson = False) -> int:
    """Check outrider.toml, or [tool.outrider] of a pyproject.toml, and show the settings of its pools.

    All that is wrong is said at once: keys that there are not, with the one that was probably meant, values that
    cannot be, files that are not there, variables of secrets that are not set. Trackers are checked also where no pool
    names them. Settings of pools that are not the defaults are shown, secrets without their values. Nothing is started,
    and no cloud is asked. Exits with 2 where something is wrong.

    Example: `outrider config check outrider.toml`

    Parameters
    ----------
    file:
        Default: the nearest, in this folder or above.
    as_json:
        Print JSON, for programs, with all settings.
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
    """Return a setting without the values that are empty by default."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _short(each) for name, each in value.items() if each not in (None, [], {}, 0, "") or each is False}
