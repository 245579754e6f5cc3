"""What goes wrong, and what the caller sees of it: one typed error, once."""

import ctypes
import os
import signal
import time

import anyio

from outrider import Local, Pool, TaskKilled, TaskTimeout, compute, instance_info


@compute
def reciprocal(number: int) -> float:
    return 1 / number


@compute(timeout=0.5)
def sleepy() -> None:
    time.sleep(60)


@compute
def segfault() -> None:
    ctypes.string_at(0)


@compute(retries=2)
def unlucky() -> str:
    """Takes its node down once, as a preempted machine would; the pool runs it again elsewhere."""
    if instance_info().attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return f"attempt {instance_info().attempt} worked"


async def main() -> None:
    async with Pool(provider=Local(), nodes=2) as pool:
        try:  # an exception of the function's own arrives as itself, with the remote traceback in its notes
            await pool.run(reciprocal(0))
        except ZeroDivisionError as error:
            print("raised there:", repr(error))

        try:  # of a broadcast: a group, one exception per rank that failed
            await pool.broadcast(reciprocal(0))
        except* ZeroDivisionError as group:
            print("raised by", len(group.exceptions), "ranks")

        try:
            await pool.run(sleepy())
        except TaskTimeout as error:
            print("too slow:", error)

        try:  # the process died, its node did not
            await pool.run(segfault())
        except TaskKilled as error:
            print("killed:", error)

        print("retried:", await pool.run(unlucky()))


if __name__ == "__main__":
    anyio.run(main)
