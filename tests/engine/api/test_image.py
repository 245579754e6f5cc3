"""An image that exists means something."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from outrider import Image, Secret, SpecError

MINOR = ".".join(platform.python_version_tuple()[:2])
NEXT = f"3.{int(platform.python_version_tuple()[1]) + 1}"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"python": NEXT}, "functions cross as bytecode"),
        ({"python": "2"}, "an absolute path on the node"),
        ({"python": 3.11}, "takes 'auto', a version or a path"),
        ({"pip": "numpy"}, "takes a list"),
        ({"pip": ["-r x.txt"]}, "is an option: write it into a file"),
        ({"pip": ["a\nb"]}, "more than one line"),
        ({"pip": [""]}, "does not belong there"),
        ({"pip_indexes": "https://host/simple"}, "takes a list"),
        ({"pip_indexes": Secret("https://host/simple")}, "takes a list"),
        ({"requirements": "missing.txt"}, "there is no file"),
        ({"lock": "missing.lock"}, "there is no file"),
        ({"apt": ["ffmpeg; rm -rf /"]}, "cannot be the name of a Debian package"),
        ({"apt": ["--allow-downgrades"]}, "cannot be the name of a Debian package"),
        ({"env": {"A": 1}}, "value of A must be a string"),
        ({"env": {"A=B": "1"}}, "cannot be the name"),
        ({"env": {"COMPUTE_POOL": ""}}, "set by the pool itself"),
        ({"includes": "src"}, "takes a list"),
        ({"includes": [3]}, "does not belong there"),
        ({"run": "make"}, "takes a list"),
        ({"run": [[]]}, "neither a line for the shell nor a list of words"),
        ({"run": ["a\0b"]}, "neither a line"),
        ({"bootstrap_timeout": 0}, "more than 0"),
        ({"bootstrap_timeout": float("inf")}, "more than 0"),
        ({"bootstrap_timeout": "5"}, "takes seconds"),
        ({"offline": "yes"}, "takes True, False, or None"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        Image(**options)


def test_what_means_something_is_kept_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    words = ["echo", "x"]
    image = Image(
        python=f"{MINOR}.1",
        pip=["numpy>=2 ; sys_platform == 'linux'"],
        requirements=tmp_path / "requirements.txt",
        apt=["libgl1", "git=1:2.39.5-0+deb12u2", "libc6:amd64", "curl/bookworm-backports"],
        run=["make", words],
        env={"TOKEN": Secret("value")},
    )
    words.append("y")
    assert image.run == ("make", ("echo", "x"))
    assert image.requirements == tmp_path / "requirements.txt"
    assert "value" not in repr(image)
    assert image.has_packages


def test_a_lock_is_found_in_its_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is neither"):
        Image(lock=tmp_path)
    (tmp_path / "uv.lock").touch()
    with pytest.raises(SpecError, match=r"belongs to a pyproject\.toml"):
        Image(lock=tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert Image(lock=tmp_path).lock == tmp_path / "uv.lock"
    (tmp_path / "poetry.lock").touch()
    with pytest.raises(SpecError, match=r"takes a uv\.lock or a pylock\.toml"):
        Image(lock=tmp_path / "poetry.lock")
    with pytest.raises(SpecError, match="leave out pip="):
        Image(lock=tmp_path, pip=["numpy"])
