"""Large uploads are told of together when they last, and what is told never exceeds what there is."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.actors.events import UploadProgress
from outrider.engine.objects.blob_transfers import TransferProgress
from outrider.engine.transport import connection_settings as module
from outrider.engine.transport.connection_settings import LARGE_BYTES, REPORT_AFTER_S, Upload, Uploads, Wave


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 100), st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 7), st.integers(0, 120)), max_size=20),
)
def test_a_wave_counts_each_byte_once(
    uploads: list[tuple[int, int, bool]], moves: list[tuple[float, int, int]]
) -> None:
    wave, now, sent = Wave(10.0), 10.0, [0] * len(uploads)
    begun = [Upload(node, size, lambda at=at: sent[at]) for at, (node, size, _) in enumerate(uploads)]
    for each in begun:
        wave.begin(each)
    told: list[UploadProgress | None] = []
    for after_s, which, at_bytes in moves:  # a try that starts over has moved less than the one before
        now += after_s
        sent[which % len(sent)] = at_bytes
        told.append(wave.progress(now))
        assert (told[-1] is None) == (now - 10.0 < REPORT_AFTER_S)
    for each, (_, _, whole) in zip(begun, uploads, strict=True):
        wave.end(each, whole=whole)
        told.append(wave.progress(now))
    for event in filter(None, told):
        assert 0 <= event.sent_bytes <= event.total_bytes <= sum(size for _, size, _ in uploads)
        assert event.nodes == len({node for node, _, _ in uploads})
    last = told[-1]
    assert (last is None) == (now - 10.0 < REPORT_AFTER_S)
    if last is not None:
        assert last.ended
        assert last.sent_bytes == last.total_bytes == sum(size for _, size, whole in uploads if whole)
        assert not any(event.ended for event in told[:-1] if event is not None)


@pytest.mark.anyio
async def test_uploads_at_the_same_time_are_one_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_AFTER_S", 0.0)
    monkeypatch.setattr(module, "REPORT_EACH_S", 0.0)
    told: list[UploadProgress] = []
    uploads, progress = Uploads(told.append, now=lambda: 7.0), TransferProgress(1)  # type: ignore[arg-type]
    with uploads.watched(0, LARGE_BYTES, progress):
        with uploads.watched(1, LARGE_BYTES, TransferProgress(1)):
            progress.moved(1000)
            while not told:
                await asyncio.sleep(0)
        assert told[-1] == UploadProgress(2, 1000, 2 * LARGE_BYTES, 0.0)
        progress.moved(LARGE_BYTES)
    ended = UploadProgress(2, 2 * LARGE_BYTES, 2 * LARGE_BYTES, 0.0, ended=True)
    assert told[-1] == ended
    for _ in range(5):
        await asyncio.sleep(0)
    assert told[-1] is told[told.index(ended)], "its timer has ended with it"


@pytest.mark.anyio
async def test_small_and_short_ones_are_not_told_of() -> None:
    told: list[object] = []
    uploads = Uploads(told.append)
    with uploads.watched(0, LARGE_BYTES - 1, TransferProgress(1)):
        assert uploads._timer is None
    with uploads.watched(0, LARGE_BYTES, TransferProgress(1)):
        await asyncio.sleep(0)
    with pytest.raises(ConnectionError), uploads.watched(0, LARGE_BYTES, TransferProgress(1)):
        raise ConnectionError
    assert told == []
