"""`outrider report`: writes an HTML file from a run's record."""

from __future__ import annotations

import gc
import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..api.checks import refuse
from ..report.page import is_no_file_of_its_own, write_report
from .exit_codes import DONE
from .flags import AsJson
from .run_choice import RunWord, chosen_run

FAILED = 1  # exit code: the file cannot be written


def report(
    run: RunWord,
    /,
    *,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    as_json: AsJson = False,
) -> int:
    """Write a run's events, curves, nodes and logs into one HTML file.

    The file is `report.html` in the run's record, and its path is printed. It needs no network and no server, so you
    can copy and send it. If the run goes on, the file shows its present state. Exits with 1 if the file cannot be
    written, and with 2 if there is no such run.

    Example: `outrider report train --open`

    Parameters
    ----------
    open_:
        Open the file in the browser.
    output:
        Write to this file instead of the record.
    as_json:
        Print the run's id, and the file's path and size, as JSON, for programs.
    """
    if as_json and output is not None and is_no_file_of_its_own(output):
        refuse(f"--json tells a file's path and size, and {output} is no file of its own: give it another one.")
    chosen = chosen_run(run)
    # a report may keep a hundred thousand points in memory: garbage collection would search them all, take a third of
    # the time, and find no garbage
    gc.disable()
    try:
        path = write_report(chosen, output)
    except OSError as error:
        where = f"{output}" if output is not None else "the record"
        advice = "" if output is not None else ": --output FILE writes it elsewhere"
        print(f"outrider: the report cannot be written to {where} ({error.strerror or error}){advice}", file=sys.stderr)
        return FAILED
    finally:
        gc.enable()
    if as_json:
        facts = {"id": chosen.id, "path": str(path.absolute()), "size_bytes": path.stat().st_size}
        print(json.dumps(facts, indent=2))
    else:
        print(path)
    if open_ and not opened(path.absolute().as_uri()):
        print("outrider: there is no browser here: open the file in one", file=sys.stderr)
    return DONE


def opened(url: str) -> bool:
    """Open a URL in a browser. Return whether a browser was found. The browser's output goes to stderr."""
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        return webbrowser.open(url)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
