"""``python docs/build_site.py [FOLDER]``: build the documentation as a site, in ``FOLDER/site`` (``build/docs/site``).

The site has the pages of ``docs/``, and pages that are made here of files elsewhere in the repository: each example,
`CONTRIBUTING.md` and its like. A link to one of these files leads to its page. A link to any other file of the
repository becomes the file's path, since the site does not have it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = {name: Path("project", f"{name.lower()}.md") for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FIRST_SCREEN = "<!-- first screen: of README.md, by docs/build_site.py -->"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def page_of(file: Path) -> Path | None:
    """Where the site has a file of the repository; None where it does not. Both are relative to their root."""
    match file.parts:
        case ("docs", *below):
            return Path(*below)
        case ("examples",):
            return Path("examples", "index.md")
        case ("examples", name) if name.endswith(".py"):
            return Path("examples", name).with_suffix(".md")
        case (name,):
            return PROJECT.get(name.removesuffix(".md"))
    return None


def with_links_of_the_site(text: str, file: Path, page: Path) -> str:
    """Return the text of a file of the repository, with links that hold on its page of the site."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], Path(os.path.normpath(file.parent / match[2])), match[3] or ""
        there = page_of(target)
        if there is None:
            return f"{label[1:-1]} (`{target}`)"
        return f"{label}({os.path.relpath(there, page.parent)}{anchor})"

    parts = FENCED.split(text)  # every other one is code
    return "".join(part if at % 2 else LINK.sub(link, part) for at, part in enumerate(parts))


def first_screen() -> str:
    """Return the README from below its title to its first heading, as a part of ``docs/index.md``."""
    text = (ROOT / "README.md").read_text().partition("\n## ")[0].partition("\n\n")[2]
    return text.replace('="docs/', '="').replace("](docs/", "](").strip()


def write_pages(folder: Path) -> None:
    """Write all pages, pictures and other files that the site is made of into a folder that does not exist yet."""
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    files = [path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.md"))]
    for file in [*files, *(Path(f"{name}.md") for name in PROJECT)]:
        page = page_of(file)
        assert page is not None
        (folder / page).parent.mkdir(exist_ok=True)
        text = (ROOT / file).read_text().replace(FIRST_SCREEN, first_screen())
        (folder / page).write_text(with_links_of_the_site(text, file, page))

    examples = folder / "examples"
    examples.mkdir()
    rows = ["# Examples", "", "Each is a whole program, and the tests run all of them.", ""]
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text()
        title = (ast.get_docstring(ast.parse(code)) or path.name).partition("\n")[0]
        (examples / path.name).with_suffix(".md").write_text(f"# examples/{path.name}\n\n```python\n{code}```\n")
        rows.append(f"- [{path.name}]({path.stem}.md): {title}")
    (examples / "index.md").write_text("\n".join(rows) + "\n")


def build(folder: Path) -> Path:
    """Build the site below ``folder``, of which everything is deleted first, and return the site's own folder.

    Exit with what zensical says where it warns of anything, as of a link that leads nowhere.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    write_pages(folder / "docs")
    run_zensical(folder)
    return folder / "site"


def run_zensical(folder: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(  # noqa: S603  # the command is the line above
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(COLOUR.sub("", done.stdout))


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs")))
