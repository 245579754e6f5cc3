# %%
import asyncio
import copyreg
import decimal
import functools
import logging
import os
import pickle
import random
import sqlite3
import string
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

COPIED = ("script", "notebook", "script as remote")  # modes whose functions travel as copies
from driver import limit, row

# %%
VARIABLE_BY_NAME = {"value": 12}


@row
def variable_by_name(n):
    return globals()["VARIABLE_BY_NAME"]


# %%
CHANGED = []


@limit(
    "a global that a task changes, and the program or another task reads",
    "it changes in the task's own process alone. Return the value",
)
def global_list_that_tasks_change(n):
    CHANGED.append(n)
    return len(CHANGED)


# %%
HELD_LOCK = threading.Lock()
HELD_LOCK.acquire()


@limit(
    "a `Lock` or `RLock` of the program, locked or not",
    "each process has an unlocked one of its own. Tasks that share a thing need a service, a file lock, or one task",
    where=COPIED,
)
def lock_that_the_program_holds(n):
    return HELD_LOCK.locked()


# %%
GLOBAL_GENERATOR = random.Random(7)


@limit(
    "a random generator of the program: `RNG = numpy.random.default_rng(0)`",
    "each task has a stream of its own. For the same numbers, make it inside, from a seed that is an argument",
)
def random_generator_of_the_program(n):
    return GLOBAL_GENERATOR.random()


# %%
SET_VARIABLE = ContextVar("SET_VARIABLE", default="default")
SET_VARIABLE.set("set")


@limit(
    "the value of a `ContextVar`, and attributes of a `threading.local`",
    "tasks begin with the default, and with none. Pass the value as an argument",
    where=COPIED,
)
def context_variable_that_the_program_sets(n):
    return SET_VARIABLE.get()


FILLED_LOCAL = threading.local()
FILLED_LOCAL.value = 5


@limit(
    "the value of a `ContextVar`, and attributes of a `threading.local`",
    "tasks begin with the default, and with none. Pass the value as an argument",
    where=COPIED,
)
def thread_local_that_the_program_fills(n):
    return FILLED_LOCAL.value


# %%
decimal.getcontext().prec = 33


@limit(
    "settings of a library or of the process: `decimal.getcontext().prec`, `logging.basicConfig`, `warnings.filterwarnings`, "
    "`torch.set_default_dtype`",
    "nodes run none of the script's own lines. Set them inside the function",
    where=COPIED,
)
def decimal_precision_of_the_process(n):
    return decimal.getcontext().prec


CONFIGURED = logging.getLogger("everyday.configured")
CONFIGURED.setLevel(logging.DEBUG)


@limit(
    "settings of a library or of the process: `decimal.getcontext().prec`, `logging.basicConfig`, `warnings.filterwarnings`, "
    "`torch.set_default_dtype`",
    "nodes run none of the script's own lines. Set them inside the function",
    where=COPIED,
)
def logging_level_of_the_script(n):
    return CONFIGURED.level


# %%
class Reducible:
    def __init__(self, n):
        self.n = n


def reduce_reducible(value):
    return Reducible, (value.n + 1,)


copyreg.pickle(Reducible, reduce_reducible)


@limit(
    "what the script registers or patches in modules: `copyreg.pickle(Mine, ...)`, `json.dumps = mine`",
    "nodes run none of the script's own lines. Write `__reduce__` in the class; patch inside the function",
    where=COPIED,
)
def copyreg_of_the_script(n):
    return pickle.loads(pickle.dumps(Reducible(n))).n


string.everyday = 5


@limit(
    "what the script registers or patches in modules: `copyreg.pickle(Mine, ...)`, `json.dumps = mine`",
    "nodes run none of the script's own lines. Write `__reduce__` in the class; patch inside the function",
    where=COPIED,
)
def patched_module(n):
    return string.everyday


# %%
@limit(
    "the current folder, `sys.argv`, `sys.stdin`",
    "they are the node's. Pass an absolute path, or the argument",
)
def current_folder(n):
    return os.getcwd()


@limit(
    "the current folder, `sys.argv`, `sys.stdin`",
    "they are the node's. Pass an absolute path, or the argument",
)
def arguments_of_the_command(n):
    return sys.argv


# %%
CONNECTION = sqlite3.connect(":memory:", check_same_thread=False)


@limit(
    "an open connection, a file open for writing, an executor, a generator that has begun, as a variable",
    "it cannot be pickled: `SerializationError`. Open it inside the function, or in `@compute(setup=...)`",
    where=COPIED,
)
def global_connection(n):
    return CONNECTION.execute("select 1").fetchone()


WRITTEN = open(os.devnull, "w")


@limit(
    "an open connection, a file open for writing, an executor, a generator that has begun, as a variable",
    "it cannot be pickled: `SerializationError`. Open it inside the function, or in `@compute(setup=...)`",
    where=COPIED,
)
def global_file_for_writing(n):
    return WRITTEN.write("x")


EXECUTOR = ThreadPoolExecutor(2)


@limit(
    "an open connection, a file open for writing, an executor, a generator that has begun, as a variable",
    "it cannot be pickled: `SerializationError`. Open it inside the function, or in `@compute(setup=...)`",
    where=COPIED,
)
def global_executor(n):
    return EXECUTOR.submit(pow, n, 2).result()


BEGUN = iter([i for i in range(100)] and (i * 0 for i in range(100)))


@limit(
    "an open connection, a file open for writing, an executor, a generator that has begun, as a variable",
    "it cannot be pickled: `SerializationError`. Open it inside the function, or in `@compute(setup=...)`",
    where=COPIED,
)
def global_generator(n):
    return next(BEGUN)


# %%
class Referent:
    pass


REFERENT = Referent()
WEAK_PROXY = weakref.proxy(REFERENT)
ONLY_REFERENCE = weakref.ref(REFERENT)


@limit(
    "a `weakref.proxy` as a variable",
    "it is the object itself on nodes. Mention the object",
    where=COPIED,
)
def weak_proxy(n):
    return type(WEAK_PROXY).__name__


by_length = functools.cmp_to_key(lambda a, b: len(a) - len(b))


@limit(
    "`functools.cmp_to_key(...)` as a variable",
    "it cannot be pickled: `SerializationError`. Make it inside the function",
    where=COPIED,
)
def cmp_to_key(n):
    return sorted(["ccc", "a", "bb"], key=by_length)


@limit(
    "a `weakref.ref` whose object the function does not mention",
    "nothing keeps the object on the node: the reference is dead. Mention the object",
    where=COPIED,
)
def weak_reference_alone(n):
    return ONLY_REFERENCE() is not None


# %%
SENTINEL_RESULT = object()


@limit(
    "`is`, of a result or argument that is an `object()` or an instance",
    "it is a copy. Use a class, a function or a member of an `Enum`, which are the program's own",
)
def sentinel_as_a_result(n):
    return SENTINEL_RESULT


# %%
@limit(
    "a generator, a lock or a socket as a result",
    "it cannot be pickled: `SerializationError`. Return a list; a function that yields gives its values by `pool.stream`",
)
def returns_a_generator(n):
    return (i for i in range(n))


@limit(
    "a generator, a lock or a socket as a result",
    "it cannot be pickled: `SerializationError`. Return a list; a function that yields gives its values by `pool.stream`",
)
def returns_a_lock(n):
    return threading.Lock()


@limit("a `memoryview` as a result", "it arrives as `bytes`. Return what it views")
def returns_a_memoryview(n):
    return memoryview(b"abc" * n)


@limit("an open file as an argument or a result", "it is refused: `SerializationError`. Give its path, or its contents")
def returns_an_open_file(n):
    return open("/dev/null")


# %%
@limit(
    "`SystemExit`, `KeyboardInterrupt`, `StopIteration`, `asyncio.CancelledError`, raised by a task",
    "they would end the program's own loop: it gets `TaskFailed`, which names them. Raise another error",
)
def raises_system_exit(n):
    sys.exit(n)


@limit(
    "`SystemExit`, `KeyboardInterrupt`, `StopIteration`, `asyncio.CancelledError`, raised by a task",
    "they would end the program's own loop: it gets `TaskFailed`, which names them. Raise another error",
)
def raises_keyboard_interrupt(n):
    raise KeyboardInterrupt


@limit(
    "`SystemExit`, `KeyboardInterrupt`, `StopIteration`, `asyncio.CancelledError`, raised by a task",
    "they would end the program's own loop: it gets `TaskFailed`, which names them. Raise another error",
)
def raises_stop_iteration(n):
    next(iter([]))


@limit(
    "`SystemExit`, `KeyboardInterrupt`, `StopIteration`, `asyncio.CancelledError`, raised by a task",
    "they would end the program's own loop: it gets `TaskFailed`, which names them. Raise another error",
)
async def raises_cancelled_error(n):
    raise asyncio.CancelledError


# %%
class LockedError(Exception):
    pass


@limit(
    "an error with an attribute that cannot be pickled",
    "the program gets `TaskFailed`, with the error's text and traceback. Leave the attribute out",
)
def raises_an_error_that_cannot_be_pickled(n):
    error = LockedError("has a lock")
    error.lock = threading.Lock()
    raise error


@limit(
    "an error or a result of a class that is made inside the function",
    "each call makes another class, here as there: no `except` names it. Define the class at the top of the file",
)
def raises_a_local_class(n):
    class LocalError(Exception):
        pass

    raise LocalError(n)
