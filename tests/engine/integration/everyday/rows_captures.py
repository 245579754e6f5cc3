# %%
import asyncio
import collections
import concurrent.futures
import contextvars
import copy
import datetime
import decimal
import inspect
import itertools
import logging
import math
import operator
import os
import os.path as osp
import random
import re
import string
import struct
import sys
import tempfile
import threading
import types
import typing
import uuid
import weakref
import xml.etree.ElementTree
import xml.etree.ElementTree as ET
from collections import Counter, OrderedDict, defaultdict, deque
from contextvars import ContextVar
from decimal import Decimal, getcontext
from fractions import Fraction
from itertools import count, cycle
from math import *
from os import environ, getpid
from pathlib import Path
from random import random as draw, seed
from secrets import choice
from types import MappingProxyType, SimpleNamespace
from driver import row


# %%
def make_counter():
    total = 0

    def add(k):
        nonlocal total
        total += k
        return total

    def peek():
        return total

    return add, peek


@row
def closures_sharing_nonlocal(n):
    add, peek = make_counter()
    add(n)
    return add(1), peek()


# %%
add_shared, peek_shared = make_counter()


@row
def global_closures_sharing_nonlocal(n):
    before = peek_shared()
    add_shared(n)
    return peek_shared() - before


# %%
def appended(item, into=[]):
    into.append(item)
    return len(into)


@row
def mutable_default_argument(n):
    first = appended(n)
    return appended(n) - first


# %%
def options(a, /, b=2, *args, c=3, **kwargs):
    return a, b, args, c, kwargs


@row
def all_kinds_of_parameters(n):
    return options(n), options(n, 1, 2, 3, c=4, d=5), str(inspect.signature(options))


# %%
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


def ping(n):
    return ["ping"] if n == 0 else ["ping", *pong(n - 1)]


def pong(n):
    return ["pong"] if n == 0 else ["pong", *ping(n - 1)]


@row
def recursion_and_mutual_recursion(n):
    return factorial(n), ping(n), (lambda f: f(f, n))(lambda f, k: k and k + f(f, k - 1))


# %%
@row
def the_row_calls_itself(n):
    return [] if n == 0 else [n, *the_row_calls_itself(n - 1)]


# %%
HITS = 0


def hit():
    global HITS
    HITS += 1
    return HITS


@row
def global_counter(n):
    before = HITS
    for _ in range(n):
        hit()
    return HITS - before


# %%
@row
def global_made_inside(n):
    global MADE_INSIDE
    MADE_INSIDE = n
    return read_made_inside()


def read_made_inside():
    return MADE_INSIDE


# %%
LIMIT = 10
NAMES = ["a", "b"]
CONFIG = {"depth": 3, "nested": {"on": True}}
PRIMES = frozenset({2, 3, 5})
MATRIX = ((1, 2), (3, 4))
FROZEN = MappingProxyType({"a": 1})
SPACE = SimpleNamespace(lr=0.1, layers=[1, 2])


@row
def module_constants(n):
    return LIMIT + n, NAMES, CONFIG["nested"], n in PRIMES, MATRIX[1], dict(FROZEN), SPACE.layers, SPACE


# %%
LOCK = threading.Lock()
RLOCK = threading.RLock()
EVENT = threading.Event()
CONDITION = threading.Condition()
SEMAPHORE = threading.Semaphore(2)


@row
def locks_and_rlocks(n):
    with LOCK, RLOCK, RLOCK:
        return n, LOCK.locked()


@row
def events_conditions_semaphores(n):
    with CONDITION, SEMAPHORE:
        return EVENT.is_set(), SEMAPHORE._value


# %%
class Guarded:
    lock = threading.Lock()

    def work(self, n):
        with self.lock:
            return n


class OwnLock:
    def __init__(self):
        self.lock = threading.Lock()
        self.items = []

    def add(self, item):
        with self.lock:
            self.items.append(item)
            return len(self.items)


OWN_LOCK = OwnLock()


@row
def lock_in_a_class_attribute(n):
    return Guarded().work(n)


@row
def lock_inside_a_global_object(n):
    before = len(OWN_LOCK.items)
    return OWN_LOCK.add(n) - before


# %%
log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())
named_log = logging.getLogger("everyday.named")


@row
def loggers(n):
    log.debug("n is %d", n)
    return named_log.name, named_log is logging.getLogger("everyday.named"), log.name == __name__


# %%
WORD = re.compile(r"(?P<first>\w)\w*", re.IGNORECASE)


@row
def compiled_regex(n):
    return WORD.match("Hello").group("first"), WORD.pattern, WORD.findall("a bc")


# %%
REQUEST = ContextVar("REQUEST", default="none")


def with_request(name):
    token = REQUEST.set(name)
    try:
        return REQUEST.get()
    finally:
        REQUEST.reset(token)


@row
def context_variable(n):
    return with_request(f"r{n}"), REQUEST.get(), REQUEST.name


# %%
LOCAL = threading.local()


@row
def thread_local(n):
    LOCAL.value = n
    seen = []
    thread = threading.Thread(target=lambda: seen.append(hasattr(LOCAL, "value")))
    thread.start()
    thread.join()
    return LOCAL.value, seen


# %%
class MyLocal(threading.local):
    number = 7

    def __init__(self):
        self.own = 1


MY_LOCAL = MyLocal()


@row
def thread_local_subclass(n):
    MY_LOCAL.own += n
    return MY_LOCAL.number, MY_LOCAL.own > n


# %%
IDS = itertools.count(100)
WHEEL = cycle("ab")


@row
def itertools_objects(n):
    first = next(IDS)
    return next(IDS) - first, next(WHEEL) in "ab"


# %%
CONTEXT = decimal.Context(prec=5)
CENT = Decimal("0.01")


@row
def decimal_context(n):
    with decimal.localcontext(CONTEXT):
        return Decimal(n) / 7, getcontext().prec, Decimal("2.345").quantize(CENT)


# %%
class Weakly:
    pass


KEPT = Weakly()
BY_OBJECT = weakref.WeakKeyDictionary({KEPT: "kept"})
BY_NAME = weakref.WeakValueDictionary(kept=KEPT)
WEAK_SET = weakref.WeakSet([KEPT])
REFERENCE = weakref.ref(KEPT)


@row
def weak_dictionaries(n):
    return BY_OBJECT[KEPT], BY_NAME["kept"] is KEPT, REFERENCE() is KEPT


@row
def weak_set(n):
    return KEPT in WEAK_SET, len(WEAK_SET)


@row
def weak_method(n):
    bound = weakref.WeakMethod(OWN_LOCK.add)
    return bound() is not None


# %%
@row
def path_of_file(n):
    return Path(FILE_HERE).name if FILE_HERE else None


FILE_HERE = globals().get("__file__")


# %%
@row
def dunder_names(n):
    return __name__, __doc__, "__file__" in globals()


# %%
GENERATOR = random.Random(5)


@row
def random_generator_object_reseeded(n):
    GENERATOR.seed(n)
    return GENERATOR.random()


@row
def from_random_import_random(n):
    seed(n)
    return draw(), random.randint(1, 10**9)


@row
def module_random_differs_between_draws(n):
    return draw() != draw(), 0 <= random.gauss(0, 1) ** 2


# %%
@row
def from_os_import_environ(n):
    environ["EVERYDAY_A"] = str(n)
    return os.environ["EVERYDAY_A"], os.getenv("EVERYDAY_A"), environ is os.environ, getpid() == os.getpid()


# %%
@row
def from_secrets_import_choice(n):
    return choice([n])


# %%
@row
def star_import(n):
    return sqrt(n * n), floor(n + 0.5), pi


# %%
@row
def import_inside(n):
    import json
    from collections import abc as c

    return json.dumps({"n": n}), issubclass(dict, c.Mapping)


# %%
@row
def submodules_and_aliases(n):
    tree = xml.etree.ElementTree.fromstring("<a><b/></a>")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return tree[0].tag, ET.tostring(tree), osp.join("a", "b"), pool.submit(pow, n, 2).result()


# %%
try:
    import module_that_is_not_there as extra
except ImportError:
    extra = None

try:
    from module_that_is_not_there import helper
except ImportError:

    def helper(n):
        return f"fallback {n}"


if sys.platform == "linux":

    def platform_name():
        return "linux"

else:

    def platform_name():
        return "other"


@row
def conditional_definitions(n):
    return extra, helper(n), platform_name()


# %%
def redefined(n):
    return "old"


OLD = redefined


def redefined(n):
    return "new", OLD(n)


@row
def function_redefined_later(n):
    return redefined(n)


# %%
DISPATCH = {"add": lambda a, b: a + b, "mul": operator.mul, "neg": lambda a, _: -a, "str": str.upper}
GET = operator.itemgetter(1)
ATTRIBUTE = operator.attrgetter("real")
CALL = operator.methodcaller("upper")


@row
def dispatch_table_and_operators(n):
    return DISPATCH["add"](n, 1), DISPATCH["mul"](n, 2), DISPATCH["str"]("a"), GET("abc"), ATTRIBUTE(n), CALL("x")


# %%
@row
def globals_by_name(n):
    return globals()["helper_by_name"](n)


def helper_by_name(n):
    return n * 7


# %%
@row
def eval_and_exec_with_names(n):
    scope = {}
    exec("def made(k): return k + 1", scope)
    return eval("helper_of_eval(n) + 1", globals(), {"n": n}), scope["made"](n)


def helper_of_eval(n):
    return n * 70


# %%
@row
def getattr_of_the_module(n):
    return getattr(sys.modules[__name__], "helper_of_getattr")(n)


def helper_of_getattr(n):
    return n * 700


# %%
@row
def import_of_its_own_module(n):
    import importlib

    return importlib.import_module(__name__).helper_of_import(n)


def helper_of_import(n):
    return n * 8


# %%
# %%
class Hinted:
    other: "Later_"
    many: list["Hinted"]

    def method(self, a: "int", b: "Later_") -> "Hinted": ...


class Later_:
    pass


@row
def get_type_hints(n):
    hints = typing.get_type_hints(Hinted)
    return hints["other"] is Later_, hints["many"] == list[Hinted], sorted(typing.get_type_hints(Hinted.method))


# %%
def sourced(n):
    # a comment
    return n + 1


@row
def inspect_getsource(n):
    return inspect.getsource(sourced), str(inspect.signature(sourced)), inspect.getsourcelines(sourced)[0][0]


@row
def inspect_getsource_of_class(n):
    return inspect.getsource(Later_)


# %%
@row
def traceback_has_source_lines(n):
    import traceback

    try:
        fails_here()
    except ZeroDivisionError as error:
        return traceback.extract_tb(error.__traceback__)[-1].line


def fails_here():
    return 1 / 0  # here it is


# %%
@row
def warnings_from_the_script(n):
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", DeprecationWarning, stacklevel=1)
    return [(str(each.message), each.category) for each in caught]


# %%
def numbers(n):
    received = yield 0
    while n:
        received = yield n if received is None else received
        n -= 1
    return "end"


def delegating(n):
    result = yield from numbers(n)
    yield result


@row
def generators(n):
    sending = numbers(n)
    next(sending)
    return list(delegating(n)), sending.send("x"), [x for x in numbers(n) if x], sum(x for x in range(n))


# %%
async def double_async(n):
    await asyncio.sleep(0)
    return n * 2


async def ticks(n):
    for i in range(n):
        yield i


@row
async def async_functions(n):
    doubled = await asyncio.gather(*(double_async(i) for i in range(n)))
    return doubled, [i async for i in ticks(n)]


@row
def asyncio_run_inside(n):
    return asyncio.run(double_async(n))


# %%
@row
def threads_inside(n):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(in_a_thread, range(n)))


def in_a_thread(k):
    with LOCK:
        return k * HELD["factor"]


HELD = {"factor": 3}


# %%
COUNTS = defaultdict(list, a=[1])
NESTED = defaultdict(lambda: defaultdict(int))
QUEUE = deque([1, 2], maxlen=3)
TALLY = Counter("abca")
ORDER = OrderedDict(b=1, a=2)
CHAIN = collections.ChainMap({"a": 1}, {"b": 2})


@row
def collections_in_globals(n):
    NESTED["x"]["y"] = n
    return COUNTS["a"], NESTED["x"]["y"], list(QUEUE), TALLY.most_common(1), list(ORDER), CHAIN["b"], QUEUE.maxlen


# %%
STARTED = datetime.datetime(2024, 5, 17, tzinfo=datetime.timezone.utc)
RUN_ID = uuid.UUID(int=5)
HALF = Fraction(1, 2)
PATH = Path("/tmp") / "a"
PACKED = struct.Struct("<ih")
TEMPLATE = string.Template("$a-$b")


@row
def values_of_the_standard_library(n):
    return STARTED, RUN_ID, HALF * n, PATH.name, PACKED.pack(n, 1), TEMPLATE.substitute(a=n, b=2)


# %%
class Config:
    debug = False
    names: list = ["a"]


@row
def settings_in_a_class(n):
    return Config.debug, Config.names


Config.debug = True
Config.later = 5


@row
def class_attribute_set_later(n):
    return Config.debug, Config.later


# %%
def patched(self):
    return "patched"


class Patched:
    def method(self):
        return "original"


Patched.method = patched
Patched.added = lambda self, k: k + 1


@row
def monkeypatched_class(n):
    return Patched().method(), Patched().added(n)


# %%
class Model:
    def __init__(self):
        self.weights = [1, 2]
        self.parent = None

    def predict(self, n):
        return [w * n for w in self.weights]


MODEL = Model()
PREDICT = MODEL.predict


@row
def global_instance_and_bound_method(n):
    return MODEL.predict(n), PREDICT(n), PREDICT.__self__ is MODEL


# %%
SENTINEL = object()


def maybe(value=SENTINEL):
    return "none" if value is SENTINEL else value


@row
def sentinel_object(n):
    return maybe(), maybe(n)


class Missing:
    pass


MISSING = Missing()


def maybe_missing(value=MISSING, *, other=MISSING):
    return value is MISSING, other is MISSING


@row
def sentinel_of_a_class(n):
    return maybe_missing(), maybe_missing(n)


# %%
first_alias = second_alias = [1]


@row
def two_names_of_one_list(n):
    first_alias.append(n)
    try:
        return first_alias is second_alias
    finally:
        first_alias.pop()


# %%
def outer_function(a):
    def middle(b):
        def inner(c):
            return a, b, c

        return inner

    return middle


ABC = outer_function(1)(2)


@row
def nested_closures(n):
    return (
        ABC(n),
        [f(n) for f in [lambda x, i=i: x + i for i in range(3)]],
        [f() for f in [lambda: i for i in range(2)]],
    )


# %%
def self_referring():
    def inner(k):
        return 0 if k == 0 else 1 + inner(k - 1)

    return inner


INNER = self_referring()


@row
def closure_that_refers_to_itself(n):
    return INNER(n)


# %%
def unset():
    if False:
        later = 1

    def reads():
        return later

    return reads


UNSET = unset()


@row
def closure_cell_not_set(n):
    try:
        return UNSET()
    except NameError as error:
        return type(error)


# %%
@row
def name_that_is_missing(n):
    return NOT_DEFINED_ANYWHERE


# %%
BUILT = types.FunctionType((lambda x: x + OFFSET).__code__, globals(), "BUILT")
OFFSET = 30


@row
def function_made_by_types(n):
    return BUILT(n), BUILT.__name__


# %%
MODULE = types.ModuleType("made_by_hand")
MODULE.value = 5
exec("def double(n): return n * value", MODULE.__dict__)


@row
def module_made_by_hand(n):
    return MODULE.double(n)


# %%
print_ = print
builtin_max = max
upper = str.upper
bound_append = [].append


@row
def builtins_under_other_names(n):
    return builtin_max(n, 2), upper("a"), bound_append(n)


# %%
def ascii(x):
    return "own ascii"


@row
def builtin_overridden(n):
    return ascii(n)


# %%
STREAM = sys.stdout
ERRORS = sys.stderr


@row
def standard_streams(n):
    return STREAM is sys.stdout or hasattr(STREAM, "write"), STREAM.write("")


# %%
LARGE = bytes(range(256)) * 4000
BIG_LIST = list(range(5000))


@row
def large_globals(n):
    return sum(LARGE[: n * 10]), BIG_LIST[n], LARGE.__sizeof__() > 1000000


# %%
@row
def walrus_match_comprehension(n):
    if (k := n * 2) > 1:
        match {"kind": "point", "at": [k, 2]}:
            case {"kind": "point", "at": [x, *rest]}:
                return x, rest, {a: b for a, b in zip("ab", range(n))}, {*range(n)}


# %%
OPENED = []


@row
def files_written_and_read(n):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_text("x" * n)
        with path.open() as file:
            return file.read(), path.stat().st_size


# %%
def annotated(a: int, b: "str" = "x", *, c: "list[int] | None" = None) -> dict:
    """Say."""
    return {}


@row
def annotations_and_doc(n):
    return (
        annotated.__annotations__,
        annotated.__doc__,
        annotated.__defaults__,
        annotated.__kwdefaults__,
        annotated.__qualname__,
    )


# %%
UserId = typing.NewType("UserId", int)
T_ = typing.TypeVar("T_", bound=int)
P_ = typing.ParamSpec("P_")
Number = int | float
Table = dict[str, list[int]]


def uses_types(user: UserId, table: Table) -> Number:
    return user


@row
def new_type_type_variables_aliases(n):
    return UserId(n), UserId.__name__, T_.__bound__, P_.__name__, isinstance(n, Number), uses_types(UserId(n), {})
