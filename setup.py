"""The README as an index page shows it: a link to a file of the repository becomes its path, and no picture stays."""

import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)")  # not with a scheme: those hold everywhere
PICTURE = re.compile(r"<picture>.*?</picture>\n+", re.DOTALL)  # of the repository too
HERE = Path(__file__).parent

setup(
    long_description=LINK.sub(r"\1 (`\2`)", PICTURE.sub("", (HERE / "README.md").read_text(encoding="utf-8"))),
    long_description_content_type="text/markdown",
)
