"""What type checkers must refuse. Every ignore is an expected error: one that is not needed is an error itself."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Iterator

from outrider import AWS, Image, Local, Nodes, Pool, Spec, SyncPool, Volume, Worker, compute, gather, plugins, stdout


@compute
def train(epochs: int) -> float:
    return float(epochs)


@compute
def rows(n: int) -> Iterator[int]:
    yield n


def plain(x: int) -> int:
    return x


class Model:
    @compute
    def predict(self, x: int) -> float:
        return float(x)


train("ten")  # type: ignore[arg-type]
Model().predict("ten")  # type: ignore[arg-type]
Model().predict(1, 2)  # type: ignore[call-arg]
Model().predict()  # type: ignore[call-arg]
train(1, 2)  # type: ignore[call-arg]
train.local("ten")  # type: ignore[arg-type]
train.with_(timeot=3)  # type: ignore[call-arg]
plugins.keras("theano")  # type: ignore[arg-type]
plugins.torch(cuda="cu128")  # type: ignore[call-arg]
AWS(instance_type="m7i.large")  # type: ignore[call-arg]
Nodes(4, maximum=8)  # type: ignore[call-arg]
train.with_(retry="always")  # type: ignore[arg-type]
compute(timeot=3)  # type: ignore[call-overload]
compute(on_stall="explode")  # type: ignore[call-overload]
train.with_(stall="long")  # type: ignore[arg-type]
train.with_(deadline="long")  # type: ignore[arg-type]
compute(on_loss="explode")  # type: ignore[call-overload]
train(1).args = ()  # type: ignore[misc]
for _ in rows(3):  # type: ignore[attr-defined]
    pass
gather(train(1), plain)  # type: ignore[call-overload]
stdout(only="tail")  # type: ignore[arg-type]
Nodes("4")  # type: ignore[arg-type]
compute(setup=plain)(lambda text: text)  # type: ignore[arg-type]
Worker(kind="fiber")  # type: ignore[arg-type]
Image(env={"A": 1})  # type: ignore[dict-item]
Volume("s3://my-bucket", "/data")  # type: ignore[call-arg]
Pool(ndoes=4)  # type: ignore[call-arg]
Pool(nodes="4")  # type: ignore[arg-type]
Spec(vcpu=4)  # type: ignore[call-arg]
Pool.attach("left", provider=AWS(), ndoes=3)  # type: ignore[call-arg]


async def with_an_async_pool(pool: Pool) -> None:
    await pool.run(plain)  # type: ignore[call-overload]
    pool.map(train, [1], limt=3)  # type: ignore[call-overload]
    pool.map(train, [1], errors="ignore")  # type: ignore[call-overload]
    await pool.run(train)  # type: ignore[call-overload]
    await pool.run(train(1), on="tail")  # type: ignore[call-overload]
    await pool.run(rows(1))  # type: ignore[call-overload]
    await train(1)  # type: ignore[misc]
    a: float = train(1) >> pool  # type: ignore[assignment]
    await (rows(1) > pool)  # type: ignore[operator]
    gather(rows(1), stream=True)  # type: ignore[call-overload]
    train(1) & 3  # type: ignore[operator]
    print(a, train(1) >> Local())  # type: ignore[operator]


def with_a_sync_pool(pool: SyncPool) -> None:
    pool.run(plain)  # type: ignore[call-overload]
    a: str = train(1) >> pool  # type: ignore[assignment]
    b: int = (train(1) & train(2)) >> pool  # type: ignore[assignment]
    print(a, b)
