"""The README as an index page shows it: a link to a file of the repository becomes that file's path."""

import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)")  # not with a scheme: those hold everywhere
HERE = Path(__file__).parent

setup(
    long_description=LINK.sub(r"\1 (`\2`)", (HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
