"""A lock that does not say exactly which files are installed is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import SpecError
from outrider.engine.image.requirements import Lock, parse_lock

PATH = Path("/project/uv.lock")
WHEEL = '{ url = "https://host/a-1-py3-none-any.whl", hashes = { sha256 = "aa" } }'
HEAD = '[[packages]]\nname = "a"\nversion = "1"\n'


def of(pylock: str, uv_lock: str = "") -> Lock:
    return parse_lock(PATH, pylock, uv_lock=uv_lock)


def test_what_a_lock_says() -> None:
    commit = 'vcs = { type = "git", url = "https://host/b.git", commit-id = "c0ffee" }'
    lock = of(f'{HEAD}index = "https://host/simple"\nwheels = [{WHEEL}]\n[[packages]]\nname = "b"\n{commit}\n')
    assert lock.requirements == ("a==1 --hash=sha256:aa", "b @ git+https://host/b.git@c0ffee")
    assert lock.indexes == ("https://host/simple",)
    assert lock.hashes == {"a-1-py3-none-any.whl": "sha256:aa"}
    assert not lock.all_hashed
    assert of(f"{HEAD}wheels = [{WHEEL}]").all_hashed


@pytest.mark.parametrize(
    "files",
    ["", 'wheels = [{ url = "https://host/a-1.whl" }]', f'wheels = [{WHEEL}]\nsdist = {{ url = "https://host/a.tgz" }}',
     'archive = { url = "https://host/a-1.whl", hashes = {} }'],
)  # fmt: skip
def test_a_file_without_a_hash_is_refused(files: str) -> None:
    with pytest.raises(SpecError, match=r"uv\.lock has no hash for a file of a, so that another"):
        of(HEAD + files)


def test_todays_hashes_of_an_index_are_not_the_locks() -> None:
    """Where uv.lock has none, `uv export` asks the index."""
    exported = f"{HEAD}wheels = [{WHEEL}]"
    package = '[[package]]\nname = "a"\nversion = "1"\nwheels = [{ url = "https://host/a-1-py3-none-any.whl"'
    assert of(exported, f'{package}, hash = "sha256:aa" }}]').requirements == ("a==1 --hash=sha256:aa",)
    with pytest.raises(SpecError, match="no hash for a file of a"):
        of(exported, f"{package} }}]")
    assert of(exported, package.replace("url", "path") + " }]").all_hashed  # a file of this computer


@pytest.mark.parametrize(
    "text", ["not toml [", "packages = 1", "packages = [1]", "[[packages]]", f"{HEAD}wheels = [1]"]
)
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not a lock that can be read"):
        of(text)
