"""The command `outrider`. The code of each verb is in a module that is imported when the verb or its help is needed."""

from __future__ import annotations

import io
import os
import sys

from cyclopts import App, Parameter

from ..api.language import Form, Language, speaking
from .common import guarded, usage_error

VERBS = {  # for each verb, the module (of this room, or with its full name) and the function that implement it
    "config check": ("config_check", "config_check"),
    "exec": ("ssh", "execute"),
    "gc": ("gc", "gc"),
    "log": ("log", "log"),
    "logs": ("follow", "logs"),
    "offers": ("offers", "offers"),
    "profile": ("control", "profile"),
    "ps": ("ps", "ps"),
    "report": ("pages", "report"),
    "run": ("run", "run"),
    "runs": ("runs", "runs"),
    "sim": ("outrider.testing.simulator.command", "sim"),
    "ssh": ("ssh", "ssh"),
    "stacks": ("control", "stacks"),
    "stop": ("control", "stop"),
    "sync": ("sync", "sync"),
    "top": ("top", "top"),
    "ui": ("pages", "ui"),
    "wait": ("follow", "wait"),
}
app = App(
    name="outrider",
    help="Runs ordinary Python functions on clusters that exist only while they are needed.",
    version_flags=["--version"],
    default_parameter=Parameter(negative=""),  # flags have no variant with --no-
    error_formatter=usage_error,
    suppress_keyboard_interrupt=False,
)
config = App(name="config", help="Check the configuration file outrider.toml.")
app.command(config)
for verb, (module, function) in VERBS.items():
    of = config if verb.startswith("config ") else app
    place = module if "." in module else f"{__package__}.{module}"
    of.command(f"{place}:{function}", name=verb.removeprefix("config "))
app.register_install_completion_command()


def main() -> None:
    for name in ("stdout", "stderr"):
        # the caller has closed this stream: print(file=sys.stderr) would print to stdout if sys.stderr stayed None
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  open as long as the program runs
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper) and stream.errors == "strict":
            # print "?" for characters that the terminal's encoding lacks, instead of ending with a traceback
            stream.reconfigure(errors="replace")
    with speaking(_language(sys.argv[1:])):
        sys.exit(guarded(lambda: app(_words(sys.argv[1:]))))


def _language(words: list[str]) -> Language:
    """Return how messages of a verb name options: on the command line, in ``--place``, or as keys of a TOML file."""
    forms: dict[str, Form] = {"run": "options", "offers": "options", "ps": "places", "gc": "places"}
    return Language(forms.get(words[0] if words else "", "toml"))


def _words(words: list[str]) -> list[str]:
    if words[:1] == ["run"]:
        from .run import with_program_apart

        return with_program_apart(words)
    if not words or (words[0] != "--version" and words[0] not in VERBS):
        for verb in VERBS:  # import every verb, because help and shell completion show the description of each verb
            _resolve(app, verb.split())
    return words


def _resolve(of: App, names: list[str]) -> None:
    for name in names:
        of = of[name]
