"""`Local()` takes the image of a cloud program: what is met here passes, and what is not is named with its command."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from outrider import Image, Local, Pool, SpecError, compute
from outrider.engine.image.local_check import refuse_what_is_lacking

ABSENT = "no-such-package-of-ours"


@pytest.fixture
def dpkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer on which ffmpeg 7.1 is installed, and git was."""
    program = tmp_path / "dpkg-query"
    program.write_text("""#!/bin/sh
for name; do :; done
case $name in
    ffmpeg) echo "installed 7:7.1-3" ;;
    git) echo "config-files 1:2.47-1" ;;
    *) echo "dpkg-query: no packages found matching $name" >&2; exit 1 ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "pip": [
                "cloudpickle",
                "Msgpack>=1",
                f"anyio=={version('anyio')}",
                "cloudpickle~=3.0 ; python_version >= '3.8'",
            ]
        },
        {"pip": [f"{ABSENT} ; sys_platform == 'win32'", "anyio[trio]"], "pip_indexes": ["https://index.example"]},
        {"python": platform.python_version(), "offline": True},
        {"python": sys.executable},
        {"apt": ["ffmpeg", "ffmpeg=7:7.1-3", "ffmpeg/stable"]},
    ],
)
@pytest.mark.usefixtures("dpkg")
def test_what_is_met_here_passes(options: dict[str, Any]) -> None:
    refuse_what_is_lacking(Image(**options))


def test_everything_that_is_lacking_is_named_at_once(dpkg: None) -> None:
    image = Image(
        pip=["cloudpickle", f"{ABSENT}[fast]>=2 ; python_version > '3'", "cloudpickle<1"],
        apt=["ffmpeg=6", "git", "sox"],
    )
    with pytest.raises(SpecError) as refused:
        refuse_what_is_lacking(image)
    assert str(refused.value) == (
        "Image: tasks of Local() run in this program's own environment, where nothing is installed for a pool, and it "
        f"lacks {ABSENT}[fast]>=2, cloudpickle<1 ({version('cloudpickle')} is here), ffmpeg=6, git, sox. Run "
        f"`pip install '{ABSENT}[fast]>=2' 'cloudpickle<1'` and `sudo apt-get install ffmpeg=6 git sox`, or leave out "
        "what your tasks do not need here."
    )


def test_what_an_extra_needs_is_looked_up_as_well() -> None:
    with pytest.raises(SpecError, match=r"lacks aiobotocore|lacks .*pyopenssl|lacks .*python-pkcs11"):
        refuse_what_is_lacking(Image(pip=["asyncssh[pkcs11]"]))


def test_requirements_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text(f"{ABSENT}==1 --hash=sha256:00  # with a remark\n-i https://index.example\n")
    (tmp_path / "constraints.txt").write_text(f"anyio<1\n{ABSENT}-2<3\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("anyio\n-r more.txt\n-c constraints.txt\n")
    with pytest.raises(SpecError, match=rf"lacks {ABSENT}==1, anyio<1 \({version('anyio')} is here\)\. Run"):
        refuse_what_is_lacking(Image(requirements=requirements))


def test_without_dpkg_debian_packages_are_taken_for_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse_what_is_lacking(Image(apt=["sox"]))


def test_another_python_and_what_would_change_this_computer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"Image\(run=\): .* no command is run for a pool"):
        refuse_what_is_lacking(Image(run=["echo"]))
    major, minor, _ = platform.python_version_tuple()
    for python in (f"{major}.{minor}.99", str(tmp_path / "python")):
        with pytest.raises(SpecError, match="run on this program's own Python"):
            refuse_what_is_lacking(Image(python=python))


@compute
def answer() -> int:
    return 42


def test_a_cloud_program_runs_on_this_computer(tmp_path: Path) -> None:
    image = Image(pip=["cloudpickle>=3"], env={"A": "1"})
    with Pool(
        provider=Local(state=tmp_path),
        image=image,
        allocation="spot",
        max_hourly_cost=3.0,
        max_cost=10.0,
        console="silent",
    ) as pool:
        assert answer() >> pool == 42
    with pytest.raises(SpecError, match=ABSENT):
        Pool(provider=Local(), image=Image(pip=[ABSENT]))
