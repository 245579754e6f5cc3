"""`outrider config check`: find everything that is wrong with a configuration file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exit_codes import DONE, WRONG
from .flags import AsJson

if TYPE_CHECKING:
    from ..config.check import CheckedPool


def config_check(file: Path | None = None, /, *, as_json: AsJson = False) -> int:
    """Check outrider.toml, or [tool.outrider] of a pyproject.toml, and show the settings of its pools.

    All that is wrong is said at once: keys that there are not, with the one that was probably meant, values that
    cannot be, files that are not there, variables of secrets that are not set. Settings that are not the defaults are
    shown, secrets without their values. Nothing is started, and no cloud is asked. Exits with 2 where something is
    wrong.

    Example: `outrider config check outrider.toml`

    Parameters
    ----------
    file:
        Default: the nearest, in this folder or above.
    as_json:
        Print JSON, for programs, with all settings.
    """
    from ..api.checks import refuse
    from ..config.check import checked_pool
    from ..config.files import OWN, SHARED, find, read

    found = find(Path.cwd()) if file is None else read(file)
    if found is None:
        refuse(f"there is no {OWN}, and no {SHARED} with [tool.outrider], in {Path.cwd()} or above: name a file.")
    pools = [checked_pool(found, name) for name in found.pools]
    if as_json:
        print(json.dumps({"file": str(found.path), "pools": {pool.name: _row(pool) for pool in pools}}, indent=2))
    else:
        if not pools:
            print(f"{found.path} names no pool: write [{found.prefix}pools.default].")
        for pool in pools:
            _show(pool, found.where(pool.name))
    return WRONG if any(pool.problems for pool in pools) else DONE


def _row(pool: CheckedPool) -> dict[str, Any]:
    return {"problems": list(pool.problems), "settings": dict(pool.settings) or None}


def _show(pool: CheckedPool, where: str) -> None:
    from ..api.printable import plain

    for problem in pool.problems:
        print(plain(f"outrider: {where}: {problem}"), file=sys.stderr)
    if pool.problems:
        return
    print(f"{where} is in order")
    for name, value in pool.changed.items():
        print(plain(f"  {name} = {json.dumps(_short(value))}"))


def _short(value: Any) -> Any:
    """Return a setting without what its class leaves out by default."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _short(each) for name, each in value.items() if each not in (None, [], {}, 0, "") or each is False}
