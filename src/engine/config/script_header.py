"""Parsing of a script's header: the block ``# /// script`` of PEP 723, with its ``[tool.outrider]``."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import field

from ...lazy_dataclass import dataclass
from ..api.checks import refuse
from ..api.errors import SpecError
from .tables import Table

# the regular expression in "Reference implementation" of PEP 723
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


@dataclass(frozen=True, slots=True)
class ScriptHeader:
    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    options: Table = field(default_factory=dict)  # the keys of the header's table [tool.outrider]

    def check_python(self, name: str) -> None:
        """Raise an error if the script does not support the version of this Python, with which its ranks run too.

        Raises:
            SpecError
        """
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            allowed = SpecifierSet(self.requires_python)
        except InvalidSpecifier:
            refuse(f"{name}: requires-python = {self.requires_python!r} is no version specifier, such as '>=3.11'.")
        ours = platform.python_version()
        if not allowed.contains(ours, prereleases=True):
            refuse(
                f"{name} asks for Python {self.requires_python}, and this is {ours}, which its ranks run with too: "
                "run outrider with another Python."
            )


def header_of(text: str, name: str) -> ScriptHeader:
    """Parse the header of a script. Without a header, all fields of the result are empty.

    ``name``: the script's name, for errors.

    Raises:
        SpecError: The header is not valid, or there are two headers.
    """
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return ScriptHeader()
    if len(blocks) > 1:
        refuse(f"{name} has {len(blocks)} blocks `# /// script`: PEP 723 allows one.")
    lines = blocks[0]["content"].splitlines(keepends=True)
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name}: its `# /// script` block is not valid TOML: {error}.") from None
    dependencies, python = table.get("dependencies", []), table.get("requires-python", "")
    if not isinstance(dependencies, list) or not all(isinstance(each, str) for each in dependencies):
        refuse(f"{name}: dependencies is a list of requirements, not {dependencies!r:.60}.")
    tool = table.get("tool", {})
    own = tool.get("outrider", {}) if isinstance(tool, Mapping) else {}
    if not isinstance(own, Mapping) or not isinstance(python, str):
        refuse(f"{name}: requires-python is a text, and [tool.outrider] a table.")
    return ScriptHeader(tuple(dependencies), python, own)
