"""The language in which messages name options: Python, TOML, or the options of a command line.

Messages are written for Python. `worded` rewrites a message before a command prints it. See decision 93.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from ...lazy_dataclass import dataclass

Form = Literal["python", "toml", "options", "places"]


@dataclass(frozen=True, slots=True)
class Language:
    """The form in which messages name options.

    ``form``: "options" of `outrider run`, or "places" of ``outrider ps --place``, which only names providers.
    ``in_file``: the pool's options that come from a file. They are named in TOML, whatever the form is.
    """

    form: Form
    in_file: frozenset[str] = frozenset()

    def form_of(self, key: str, *, is_provider: bool = False) -> Form:
        """Return the form of the pool's option ``key``. ``is_provider``: the option describes a provider."""
        if key in self.in_file or (self.form == "places" and not is_provider):
            return "toml"
        return self.form


MOST_CHARS = 8000  # the longest message that is rewritten: the time grows with the square of its length
_MARKS = ("(", "True or False", "timedelta", "Pool: ")  # parts that only messages written for Python have
PYTHON, TOML = Language("python"), Language("toml")
_language = PYTHON


@contextmanager
def speaking(language: Language) -> Iterator[None]:
    """Name options in ``language`` until the block ends, in all threads of this process."""
    global _language  # noqa: PLW0603 - a process has one caller
    before, _language = _language, language
    try:
        yield
    finally:
        _language = before


def options_are_in_file(keys: frozenset[str]) -> None:
    """Record which of the pool's options this command reads from a file."""
    global _language  # noqa: PLW0603
    if _language.form != "python":
        _language = Language(_language.form, keys)


def is_python() -> bool:
    return _language.form == "python"


def worded(text: str) -> str:
    """Return a message with its options in the language that this process uses at present."""
    return text if is_python() else in_language(text, _language)


def is_own(error: BaseException) -> bool:
    """Return whether the text of an error comes from Outrider alone, and contains no text of the user's code."""
    from .errors import BroadcastFailed, OutriderError, SerializationError, TaskError

    return isinstance(error, OutriderError) and not isinstance(error, BroadcastFailed | SerializationError | TaskError)


def in_toml(text: str) -> str:
    """Return a message about a table of a file, in TOML.

    If a command rewrites messages when it prints them, return the message unchanged.
    """
    return in_language(text, TOML) if _language.form in ("python", "toml") else text


def in_language(text: str, language: Language) -> str:
    if language.form == "python" or len(text) > MOST_CHARS or not any(each in text for each in _MARKS):
        return text
    from .option_words import rewritten

    return rewritten(text, language)


def reword(error: BaseException, language: Language) -> None:
    """Rewrite the message of an error in place."""
    if error.args and isinstance(error.args[0], str):
        error.args = (in_language(error.args[0], language), *error.args[1:])
