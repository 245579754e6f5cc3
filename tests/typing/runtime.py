"""What type checkers see of `shard`, `instance_info` and the specs. Checked by `make typecheck`, never run."""

from typing import assert_type

from outrider import (
    Accelerator,
    BroadcastFailed,
    Image,
    InstanceInfo,
    Nodes,
    Outcome,
    Peer,
    Secret,
    Volume,
    Worker,
    accelerators,
    instance_info,
    shard,
)

info = instance_info()
assert_type(info, InstanceInfo)
assert_type(info.rank, int)
assert_type(info.accelerator, Accelerator | None)
assert_type(info.peers, tuple[Peer, ...])

xs, ys = [1.0], ("a", "b")
assert_type(shard(xs), list[float])
assert_type(shard(ys, shuffle=True, seed=1, epoch=2, drop_last=True), tuple[str, str])
assert_type(shard(xs, {"not": "checked"}, shuffle=True), tuple[list[float], dict[str, str]])
assert_type(shard(xs, range(3), [b""]), tuple[list[float], range, list[bytes]])

assert_type(accelerators.A100(count=8, memory="80GB"), Accelerator)
assert_type(Nodes.of((2, 8)).min, int)
assert_type(Worker(concurrency=2, kind="thread").concurrency, int)
assert_type(Image(env={"A": "b"}), Image)
assert_type(Volume("s3://my-bucket", mount="/data", credentials={"A": Secret("b")}), Volume)


def outcomes(error: BroadcastFailed) -> None:
    assert_type(error.outcomes, tuple[Outcome, ...])
    assert_type(error.outcomes[0].rank, int)
    assert_type(error.exceptions, tuple[Exception | ExceptionGroup[Exception], ...])
