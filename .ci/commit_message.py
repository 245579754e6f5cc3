"""``python .ci/commit_message.py FILE``: check a commit message, as git's commit-msg hook.

The form is ``area: imperative subject`` in at most 72 characters, an empty line, and a body.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST_CHARS = 72
SUBJECT = re.compile(r"(?P<area>[a-z0-9_.][\w./-]*(, [a-z0-9_.][\w./-]*)*): (?P<first>\S+)(?P<rest> .+)?")
MADE_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SCISSORS = "# ------------------------ >8 ------------------------"
# Verbs that end as other forms of verbs do.
IMPERATIVES = {
    "bring",
    "embed",
    "exceed",
    "feed",
    "need",
    "proceed",
    "seed",
    "shed",
    "speed",
    "spring",
    "string",
    "swing",
}
NO_VERBS = {"a", "an", "another", "each", "every", "no", "one", "some", "that", "the", "this", "what", "who", "whoever"}


def lines_of(message: str) -> list[str]:
    """Return the lines that git keeps: without comments, and without the diff of ``git commit --verbose``."""
    kept = message.partition(SCISSORS)[0].splitlines()
    lines = [line.rstrip() for line in kept if not line.startswith("#")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def problems(message: str) -> list[str]:
    """Return what is wrong with a message, a sentence each."""
    lines = lines_of(message)
    if not lines:
        return ["The message is empty."]
    subject, *rest = lines
    if subject.startswith(MADE_BY_GIT):
        return []
    found = []
    if len(subject) > MOST_CHARS:
        found.append(f"The subject has {len(subject)} characters: at most {MOST_CHARS}.")
    match = SUBJECT.fullmatch(subject)
    if match is None:
        found.append("The subject is not `area: imperative subject`, such as `transport: reconnect after a refusal`.")
    elif problem := mood_problem(match["first"]):
        found.append(problem)
    if subject.endswith("."):
        found.append("The subject ends with a full stop.")
    if rest and rest[0]:
        found.append("The second line is not empty.")
    if not any(rest[1:] if rest and not rest[0] else rest):
        found.append("There is no body: say why, and how it was checked.")
    return found


def mood_problem(word: str) -> str:
    """Return why a word is no imperative, as far as its form shows; "" if nothing is wrong with it."""
    lower = word.lower()
    if word[0].isupper() and not word.isupper():
        return f"The subject begins with a capital letter: {lower!r} instead of {word!r}."
    if lower in NO_VERBS:
        return f"The subject begins with {word!r}: begin with a verb, such as `add`, `keep` or `refuse`."
    is_past = lower.endswith(("ed", "ing")) and lower not in IMPERATIVES
    is_third_person = lower.endswith("s") and not lower.endswith(("ss", "us", "as"))
    if is_past or is_third_person:
        return f"{word!r} is no imperative: write `add`, not `added`, `adds` or `adding`."
    return ""


def main(path: str) -> int:
    found = problems(Path(path).read_text())
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
