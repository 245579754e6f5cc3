"""What a provider may say of a node's sources, and that nothing is asked without its word; a file and signals as
sources; and that signals end none of a node's processes, and all others as ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node.notices import clouds, sources
from outrider.engine.node.notices.sources import PreemptFile, Signals
from outrider.engine.node.process import shield

ABOUT_120, ABOUT_60 = pytest.approx(120, abs=25), pytest.approx(60, abs=25)  # a slow computer's file may be old


def test_every_source_has_a_text() -> None:
    found = sources.named(
        ["aws", "aws-rebalance", "gcp", "gcp-maintenance,seconds=3600", "azure", "slurm,USR1=120,SIGTERM=30"]
    )
    assert [type(source) for source in found] == [
        clouds.SpotAction, clouds.Rebalance, clouds.Preempted, clouds.Maintenance, clouds.ScheduledEvents, Signals,
    ]  # fmt: skip
    assert [source.name for source in found] == ["aws", "aws-rebalance", "gcp", "gcp-maintenance", "azure", "slurm"]
    assert sources.named([]) == []


def test_another_place_may_be_asked() -> None:
    (source,) = sources.named(["azure,url=http://127.0.0.1:8080/"])
    assert isinstance(source, clouds.ScheduledEvents)
    assert source._url == "http://127.0.0.1:8080"


def test_only_signals_are_listened_to() -> None:
    texts = ["gcp", "slurm,USR1=120,TERM=30", "signal,USR2=withdrawn,HUP=9"]
    assert sources.signals(texts) == [signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no source of notices: aws"),
        ("oracle", "'oracle' is no source"),
        ("aws,url=ftp://x", "no option url=ftp"),
        ("aws,seconds=3", "no option seconds=3"),
        ("gcp-maintenance,seconds=-1", "not a number of seconds"),
        ("gcp-maintenance,seconds=nan", "not a number of seconds"),
        ("gcp-maintenance,seconds=soon", "soon"),
        ("slurm", "say which signals"),
        ("slurm,USR2=withdrawn", "say which signals"),
        ("slurm,USR9=3", "'USR9' is not a signal"),
        ("slurm,USR1", "written name=value"),
        ("slurm,=3", "written name=value"),
        ("file", "whole path"),
        ("file,path=notice", "whole path"),
        ("file,path=/run/a,b", "written name=value"),
        ("file,path=/run/a,seconds=3", "whole path"),
        ("file,path=/run/a,name=file", "has this name"),
    ],
)
def test_what_says_nothing_is_refused_with_what_would(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sources.named([text])


def test_a_source_is_not_there_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        sources.named(["gcp", "gcp,url=http://127.0.0.1"])


def test_a_file_is_named_by_its_path() -> None:
    found = sources.named(["file,path=/run/a", "file,path=/run/b,name=maintenance"])
    assert [(source.name, source._path) for source in found if isinstance(source, PreemptFile)] == [
        ("notice-file", Path("/run/a")),
        ("maintenance", Path("/run/b")),
    ]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreemptFile, "every_s", 0.002)
    monkeypatch.setattr(PreemptFile, "at_most_s", 0.002)


@pytest.mark.anyio
@pytest.mark.usefixtures("often")
async def test_a_file_is_a_notice_until_it_is_removed(service: Any, tmp_path: Path) -> None:
    file = tmp_path / "preempt"
    service.watch(PreemptFile(file))
    file.write_text("120")
    await service.until(lambda: service.notices == [ABOUT_120])
    for nothing_new in ("", " \n", "in 3", "nan", "inf", "9" * 400):
        file.write_text(nothing_new)
        await asyncio.sleep(0.005)
    file.write_text("60\n")
    await service.until(lambda: service.notices == [ABOUT_120, ABOUT_60])
    file.unlink()
    await service.until(lambda: service.notices == [ABOUT_120, ABOUT_60, None])
    file.write_text("60\n")  # by another one
    await service.until(lambda: service.notices == [ABOUT_120, ABOUT_60, None, ABOUT_60])


@pytest.mark.anyio
@pytest.mark.usefixtures("often")
async def test_the_seconds_of_a_file_count_from_when_it_was_written(service: Any, tmp_path: Path) -> None:
    file = tmp_path / "preempt"
    file.write_text("120")
    _written_ago(file, 100)
    service.watch(PreemptFile(file))
    await service.until(lambda: service.notices == [pytest.approx(20, abs=19)])
    _written_ago(file, 200)
    await service.until(lambda: service.notices[1:] == [0.0])
    _written_ago(file, -1000)  # by a clock that is ahead of ours
    await service.until(lambda: service.notices[2:] == [120.0])


def _written_ago(file: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(file, (at, at))


@pytest.mark.anyio
@pytest.mark.usefixtures("often")
async def test_what_cannot_be_read_is_told_once_and_withdraws_nothing(service: Any, tmp_path: Path, capfd: Any) -> None:
    file, said = tmp_path / "preempt", ""
    service.watch(PreemptFile(file))

    def logged(words: str) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return words in said

    file.write_text("120")
    await service.until(lambda: service.notices == [ABOUT_120])
    file.unlink()
    await service.until(lambda: service.notices == [ABOUT_120, None])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").rename(file)  # whoever reads it waits for one that writes
    await service.until(lambda: logged("it is no file"))
    file.unlink()
    await service.until(lambda: logged("answers again"))
    file.mkdir()
    await service.until(lambda: logged("") and said.count("it is asked again") == 2)
    assert service.notices == [ABOUT_120, None]


@pytest.mark.anyio
@pytest.mark.usefixtures("often")
async def test_a_file_of_others_that_may_not_be_read_is_told(
    service: Any, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    def refused(path: Path) -> tuple[str, int]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(sources, "_small_file", refused)  # root may read all
    service.watch(PreemptFile(tmp_path / "preempt"))
    said: list[str] = []

    def told() -> bool:
        said.append(capfd.readouterr().err)
        return "cannot be read: Permission denied; it is asked again" in "".join(said)

    await service.until(told)
    assert service.notices == []


@pytest.mark.anyio
async def test_signals_announce_and_take_back(service: Any) -> None:
    service.watch(Signals("signal", {signal.SIGUSR1: 120.0, signal.SIGTERM: 30.0, signal.SIGUSR2: None}))
    await asyncio.sleep(0)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
        await service.until(lambda number=number: service.notices[-1:] == [{10: 120.0, 15: 30.0, 12: None}[number]])


@pytest.mark.anyio
async def test_a_source_that_ends_leaves_the_signals_as_they_were() -> None:
    watching = asyncio.ensure_future(Signals("signal", {signal.SIGUSR1: 1.0}).watch(lambda seconds: None))
    await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def _ended_by(make: Any, number: int) -> int:
    """The status of a child that does ``make`` and then gets the signal."""
    pid = os.fork()
    if pid == 0:
        try:
            make()
            os.kill(os.getpid(), number)
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _forked_again() -> None:
    """As multiprocessing does: the shielded process is the parent."""
    shield([signal.SIGTERM])
    if (pid := os.fork()) != 0:
        os._exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_our_processes_survive_and_those_they_fork_do_not() -> None:
    assert _ended_by(lambda: shield([signal.SIGUSR1]), signal.SIGUSR1) == 0
    assert _ended_by(lambda: shield([signal.SIGUSR1]), signal.SIGTERM) == -signal.SIGTERM
    assert _ended_by(_forked_again, signal.SIGTERM) == signal.SIGTERM


def test_what_they_execute_is_ended_as_ever() -> None:
    program = (
        "import signal, subprocess; from outrider.engine.node.process import shield; "
        "shield([signal.SIGTERM]); child = subprocess.Popen(['sleep', '60']); child.terminate(); "
        "raise SystemExit(-child.wait())"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == signal.SIGTERM
