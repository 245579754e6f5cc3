# %%
import asyncio
import functools
import multiprocessing
import multiprocessing.pool
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from driver import row


# %%
@dataclass
class Job:
    n: int

    def run(self):
        return Done(self.n * FACTOR)


@dataclass
class Done:
    n: int


FACTOR = 5


def child(n):
    return Job(n).run()


def put_in(queue, n):
    queue.put(Job(n))


def initialize(value):
    global INITIALIZED
    INITIALIZED = value


INITIALIZED = 0


def initialized(_):
    return INITIALIZED


# %%
@row(value=[Done(15), Done(5)])
def pool_by_fork(n):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(child, [n, 1])


@row(value=[Done(15), Done(5)])
def pool_by_spawn(n):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(child, [n, 1])


@row(value=[Done(15), Done(5)])
def pool_by_forkserver(n):
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        return pool.map(child, [n, 1])


# %%
@row(value=(Job(3), 0))
def process_and_queue_by_fork(n):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=put_in, args=(queue, n))
    process.start()
    job = queue.get()
    process.join()
    return job, process.exitcode


@row(value=(Job(3), 0))
def process_and_queue_by_spawn(n):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=put_in, args=(queue, n))
    process.start()
    job = queue.get()
    process.join()
    return job, process.exitcode


# %%
@row(value=([Done(15), Done(5)], Done(15)))
def process_pool_executor(n):
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(child, [n, 1])), pool.submit(child, n).result()


@row(value=[Done(15)])
def process_pool_executor_by_spawn(n):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(child, [n]))


# %%
@row(value=[7])
def pool_with_an_initializer_by_spawn(n):
    with multiprocessing.get_context("spawn").Pool(1, initialize, (7,)) as pool:
        return pool.map(initialized, [0])


# %%
@row(value=(3,))
def error_in_a_child(n):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            return pool.map(failing_child, [n])
        except ChildError as error:
            return error.args


def failing_child(n):
    raise ChildError(n)


class ChildError(Exception):
    pass


# %%
class Worker_(multiprocessing.get_context("fork").Process):
    def __init__(self, queue, n):
        super().__init__()
        self.queue, self.n = queue, n

    def run(self):
        self.queue.put(child(self.n))


@row(value=Done(15))
def process_subclass(n):
    queue = multiprocessing.get_context("fork").Queue()
    worker = Worker_(queue, n)
    worker.start()
    try:
        return queue.get()
    finally:
        worker.join()


# %%
@row(value=(3, [0.0, 3.0]))
def shared_value_and_array_by_fork(n):
    context = multiprocessing.get_context("fork")
    value, array = context.Value("i", 0), context.Array("d", 2)

    def work():
        with value.get_lock():
            value.value += n
        array[1] = n

    process = context.Process(target=work)
    process.start()
    process.join()
    return value.value, list(array)


# %%
@row(value=Job(3))
def manager_and_pipe(n):
    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=there.send, args=(Job(n),))
    process.start()
    try:
        return here.recv()
    finally:
        process.join()


# %%
@row(value=3)
def shared_memory(n):
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(create=True, size=16)
    try:
        memory.buf[0] = n
        return memory.buf[0]
    finally:
        memory.close()
        memory.unlink()


# %%
@row(value="6\n")
def subprocess_with_python(n):
    done = subprocess.run([sys.executable, "-c", f"print({n} * 2)"], capture_output=True, text=True, check=True)
    return done.stdout


@row(value=(b"3\n", 1))
def subprocess_of_a_shell(n):
    return subprocess.check_output(["sh", "-c", f"echo {n}; exit 0"]), subprocess.call(["false"])


@row(value=b"3\n")
async def asyncio_subprocess(n):
    process = await asyncio.create_subprocess_exec("echo", str(n), stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]


# %%
@row(value=b"15")
def os_fork(n):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, str(child(n).n).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    return os.read(read, 10)


# %%
@row(value=[Done(15), Done(5)])
def process_in_a_thread(n):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(pool_by_fork, n).result()


# %%
@row(value=([Done(15), Done(5)], [3]))
def thread_pool_of_multiprocessing(n):
    with multiprocessing.pool.ThreadPool(2) as pool:
        return pool.map(child, [n, 1]), pool.starmap(max, [(n, 2)])


# %%
@row(value=[Done(15)])
def partial_and_method_by_spawn(n):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return [pool.apply(functools.partial(method_of, Job), (n,))]


def method_of(kind, n):
    return kind(n).run()


# %%
@row(value=[3])
def timer_and_daemon_threads(n):
    seen = []
    timer = threading.Timer(0, seen.append, [n])
    timer.start()
    timer.join()
    return seen


# %%
@row
def main_guard(n):
    return RAN_AS_MAIN


RAN_AS_MAIN = __name__ == "__main__"
