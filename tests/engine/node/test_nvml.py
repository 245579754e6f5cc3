"""What GPUs do is read from the driver's library, here one of ten lines; whatever it fails with is no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.node.sampler import NVML_AGAIN_S, Gpus
from outrider.engine.wire.messages import GpuSample

from ..fake_gpus import built


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(built(tmp_path_factory.mktemp("nvml")))


FIRST = GpuSample(0, 0.41, 1 << 30, 80 << 30, 300.5)
SECOND = GpuSample(1, 0.42, 2 << 30, 80 << 30, 300.5)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, (FIRST, SECOND)),
        ("1", (SECOND,)),
        ("1,0", (SECOND, FIRST)),
        ("GPU-2f,7,0", (SECOND,)),
        ("0,0", (FIRST,)),
        ("", ()),
        ("MIG-1", ()),
    ],
)
def test_the_gpus_of_the_node_are_read(library: str, visible: str | None, seen: tuple[GpuSample, ...]) -> None:
    gpus = Gpus(visible, library=library)
    assert gpus.read() == seen
    assert gpus.read() == seen


def test_a_gpu_that_is_lost_is_left_out_while_it_is(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(library=library)
    assert gpus.read() == (FIRST, SECOND)
    set_variable(monkeypatch, "lost0")
    assert gpus.read() == (SECOND,)
    set_variable(monkeypatch, "lost0 lost1")
    assert gpus.read() == ()
    set_variable(monkeypatch, "")
    assert gpus.read() == (FIRST, SECOND)


def test_what_a_gpu_does_not_support_is_not_known(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variable(monkeypatch, "MIG")
    assert Gpus("0", library=library).read() == (FIRST._replace(utilisation=None),)


def test_a_driver_that_comes_later_is_found(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    gpus = Gpus(library=library, clock=lambda: now)
    set_variable(monkeypatch, "no driver")
    assert gpus.read() == ()
    set_variable(monkeypatch, "")
    assert gpus.read() == ()  # it was asked just now
    now += NVML_AGAIN_S
    assert gpus.read() == (FIRST, SECOND)


def test_no_library_or_another_one_is_no_error(tmp_path: Path) -> None:
    assert Gpus(library="libno-such-library.so.1").read() == ()
    assert Gpus(library="libc.so.6").read() == ()
    (tmp_path / "text.so").write_text("no library")
    assert Gpus(library=str(tmp_path / "text.so")).read() == ()


def set_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NVML_SAYS", value)
