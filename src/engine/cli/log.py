"""`outrider log`: logs numbers, texts, settings and files from shells and programs that a task has started.

On nodes it runs as `python -m outrider log`. Nodes have no cyclopts, so `main` parses the arguments there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..node.log_socket import VARIABLE

DONE, LOST, WRONG = 0, 1, 2  # exit codes


def log(
    *values: str,
    step: int | None = None,
    text: str | None = None,
    name: str | None = None,
    param: list[str] | None = None,
    artifact: list[Path] | None = None,
) -> int:
    """Log numbers, texts and files to a run's record, from a script that a task started.

    For shell scripts and other programs. In Python, use log_metrics, log_text, log_params and log_artifact.

    Exits with 1 if the node does not accept what is logged, and with 2 if no task started the script, or an argument is
    invalid.

    Example: `outrider log loss=0.3 accuracy=0.9 --step 7`

    Parameters
    ----------
    values:
        Numbers to log, such as loss=0.3. nan and inf are allowed.
    step:
        The training step to which the numbers or the text belong.
    text:
        A text to log, such as a sample that a model has generated.
    name:
        The name of the text (default: text) or of the artifact (default: its file name).
    param:
        A setting of the run, such as lr=0.1. Can be repeated.
    artifact:
        A file to copy into the record. Can be repeated.
    """
    if not os.environ.get(VARIABLE):
        return _refused(f"log is for what a task of a pool has started: {VARIABLE} is not set here")
    if not (values or param or artifact) and text is None:
        return _refused("there is nothing to be logged: outrider log loss=0.3 --step 7")
    from ..record import log_calls

    try:
        if values:
            log_calls.log_metrics({key: _number(key, value) for key, value in map(_pair, values)}, step=step)
        if text is not None:
            log_calls.log_text(text, name=name or "text", step=step)
        if param:
            log_calls.log_params({key: _setting(value) for key, value in map(_pair, param)})
        for path in artifact or ():
            log_calls.log_artifact(path, name if len(artifact or ()) == 1 else None)
    except (ValueError, TypeError) as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(f"{error.filename or 'the file'} cannot be read: {error.strerror or error}")
    return LOST if log_calls.has_lost() else DONE


def main(words: Sequence[str]) -> int:
    """Run `outrider log` with these arguments. Nodes have no third-party packages, so only the standard library is
    used.
    """
    parser = argparse.ArgumentParser(
        prog="outrider log", description="Log to a run's record, from a script that a task started."
    )
    parser.add_argument("values", nargs="*", metavar="NAME=NUMBER")
    parser.add_argument("--step", type=int)
    parser.add_argument("--text")
    parser.add_argument("--name")
    parser.add_argument("--param", action="append", metavar="NAME=VALUE")
    parser.add_argument("--artifact", action="append", type=Path)
    arguments = parser.parse_intermixed_args(words)
    return log(
        *arguments.values,
        step=arguments.step,
        text=arguments.text,
        name=arguments.name,
        param=arguments.param,
        artifact=arguments.artifact,
    )


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise ValueError(f"give values as NAME=VALUE, not {word!r}")
    return name, value


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name} is no number: {value!r}; --text logs texts, and --param settings") from None


def _setting(value: str) -> str | float | int:
    """Return a setting as a number if it has the form of a number."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _refused(reason: str) -> int:
    print(f"outrider: {reason}", file=sys.stderr)
    return WRONG
