"""The same without async, in the style of operators: `>>` one node, `@` all nodes, `&` together, `>` at once."""

import outrider as sky


@sky.compute
@sky.stdout(only="head")
def part(numbers: list[int]) -> int:
    mine = sky.shard(numbers)
    info = sky.instance_info()
    print(f"rank {info.rank} of {info.world_size} has {mine}; only the head's lines are shown")
    return sum(mine)


@sky.compute
def square(number: int) -> int:
    return number**2


def main() -> None:
    numbers = list(range(10))
    with sky.ComputePool(provider=sky.Local(), nodes=4) as pool:
        print("one node:", part(numbers) >> pool)
        parts = part(numbers) @ pool
        print("each rank:", parts, "in all:", sum(parts))
        print("together:", (square(3) & square(4)) >> pool)
        print("gathered:", sky.gather(square(5), square(6)) >> pool)
        future = square(7) > pool
        print("a future:", future.result())
    print("here, without a pool:", part.local(numbers))


if __name__ == "__main__":
    main()
