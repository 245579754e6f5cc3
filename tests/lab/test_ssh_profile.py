"""Two hosts whose clocks are 5 s apart meet at a barrier in the trace of a profile."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from outrider import Image, Pool, compute, instance_info, plugins, profile
from outrider.engine.record.profiles import merge, profiles_in
from outrider.engine.record.runs.names import runs_folder

pytestmark = pytest.mark.anyio
AHEAD_S, MEETINGS, WITHIN_S = 5, 20, 0.005

# A clock that is ahead, for all programs of a host. A namespace of time does not shift CLOCK_REALTIME.
CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += @AHEAD@;
    return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@compute
def meet() -> tuple[int, str, float]:
    import time

    import torch.distributed as dist
    from torch.profiler import record_function

    with profile():
        for number in range(MEETINGS):
            time.sleep(0.01)
            dist.barrier()
            with record_function(f"met {number}"):
                pass
    info = instance_info()
    return info.rank, info.hostname, time.time()


@pytest.mark.nightly
async def test_two_clocks_that_are_five_seconds_apart_meet_at_a_barrier(
    hosts, ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    made = hosts(2)
    (tmp_path / "clock.c").write_text(CLOCK.replace("@AHEAD@", str(AHEAD_S)))
    library = made[1].path("/usr/local/lib/ahead.so")  # of the host alone, as all of its files that are written
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "clock.c"], check=True)
    made[1].path("/etc/ld.so.preload").write_text("/usr/local/lib/ahead.so\n")
    assert not Path("/etc/ld.so.preload").exists(), "this machine's own clock stays right"
    gloo, here = plugins.torch(backend="gloo"), Image(python=sys.executable)
    async with Pool(provider=ssh(made), nodes=2, image=here, plugins=[gloo], console="silent", run="met") as pool:
        results = sorted(await pool.broadcast(meet()))
    clocks = {name: at for _, name, at in results}
    assert AHEAD_S - 1 < clocks[made[1].name] - clocks[made[0].name] < AHEAD_S + 1, "their clocks do differ"
    (record,) = runs_folder().glob("*-met-*")
    ((name, parts),) = profiles_in(record).items()
    offsets = sorted(each.clock_offset_s for each in parts if each.clock_offset_s is not None)
    assert offsets == pytest.approx([0, AHEAD_S], abs=WITHIN_S)
    assert all(each.clock_error_s is not None and each.clock_error_s < 2 * WITHIN_S for each in parts)
    merged = merge(record, name, parts)
    assert merged.trace is not None
    events = json.loads(gzip.decompress(merged.trace.read_bytes()))["traceEvents"]
    met = {
        rank: [each["ts"] for each in events if each["name"].startswith("met ") and each["pid"] // 1000 == rank]
        for rank in (0, 1)
    }
    apart_s = [abs(one - other) / 1e6 for one, other in zip(met[0], met[1], strict=True)]
    assert len(apart_s) == MEETINGS
    print(f"apart: {1e3 * median(apart_s):.2f} ms in the median, {1e3 * max(apart_s):.2f} ms at most")
    assert median(apart_s) < WITHIN_S
