# %%
import contextlib
import functools
import operator
import time
from contextlib import contextmanager
from functools import (
    cache,
    cached_property,
    lru_cache,
    partial,
    partialmethod,
    reduce,
    singledispatch,
    singledispatchmethod,
    wraps,
)
from driver import row


# %%
def logged(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        CALLS.append(function.__name__)
        return function(*args, **kwargs)

    return wrapper


CALLS = []


@row
@logged
def wraps_decorator(n):
    """Add one."""
    return n + 1, wraps_decorator.__name__, wraps_decorator.__doc__, CALLS[-1], wraps_decorator.__wrapped__.__name__


# %%
def repeat(times, *, glue="-"):
    def decorate(function):
        @wraps(function)
        def wrapper(*args):
            return glue.join(str(function(*args)) for _ in range(times))

        return wrapper

    return decorate


@row
@repeat(3, glue="+")
def decorator_with_arguments(n):
    return n


# %%
@repeat(2)
@logged
def stacked(n):
    return n + 5


@row
def stacked_decorators(n):
    return stacked(n), stacked.__name__


# %%
class Counter_:
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function
        self.count = 0

    def __call__(self, *args):
        self.count += 1
        return self.function(*args)


@Counter_
def counted(n):
    return n * 2


@row
def class_as_a_decorator(n):
    before = counted.count
    return counted(n), counted.count - before, counted.__name__


# %%
def with_repr(cls):
    cls.__repr__ = lambda self: f"<{cls.__name__} {vars(self)}>"
    return cls


@with_repr
class Represented:
    def __init__(self, a):
        self.a = a


@row
def class_decorator(n):
    return repr(Represented(n))


# %%
def replaced(cls):
    class Replacement(cls):
        extra = "more"

    Replacement.__name__ = cls.__name__
    Replacement.__qualname__ = cls.__qualname__
    return Replacement


@replaced
class Original:
    def value(self):
        return "value"


@row
def class_decorator_that_replaces(n):
    return Original().value(), Original.extra, Original.__name__, len(Original.__mro__)


# %%
@lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@row
def lru_cache_recursive(n):
    fib.cache_clear()
    return fib(n + 10), fib.cache_info().maxsize, fib.cache_info().misses


# %%
@lru_cache
def squared(n):
    return n * n


@row
def lru_cache_bare(n):
    squared.cache_clear()
    squared(n)
    squared(n)
    return squared(n), tuple(squared.cache_info()), squared.cache_parameters(), squared.__wrapped__(4)


# %%
@lru_cache(maxsize=2, typed=True)
def typed_cache(n):
    return type(n).__name__


@row
def lru_cache_maxsize_typed(n):
    typed_cache.cache_clear()
    return typed_cache(n), typed_cache(float(n)), typed_cache.cache_info().currsize


# %%
@cache
def settings():
    return {"made": True}


@row
def functools_cache_of_nothing(n):
    return settings() is settings(), settings()


# %%
class Cached:
    def __init__(self, n):
        self.n = n

    @lru_cache(maxsize=8)  # noqa: B019
    def slow(self, k):
        return self.n * k

    @staticmethod
    @cache
    def fixed(k):
        return k + 1

    @classmethod
    @cache
    def of_class(cls, k):
        return cls.__name__, k


@row
def lru_cache_on_methods(n):
    return Cached(n).slow(2), Cached.fixed(n), Cached.of_class(n), Cached.slow.cache_info().maxsize


# %%
@cache
def even(n):
    return True if n == 0 else odd(n - 1)


@cache
def odd(n):
    return False if n == 0 else even(n - 1)


@row
def cache_mutual_recursion(n):
    return even(n), odd(n)


# %%
@row
@lru_cache
def row_is_cached_itself(n):
    return n * 11


# %%
@singledispatch
def show(value):
    return f"any:{value}"


@show.register
def _(value: int):
    return f"int:{value}"


@show.register(list)
def _(value):
    return "[" + ",".join(show(each) for each in value) + "]"


class Shown:
    pass


@show.register
def show_shown(value: Shown):
    return "shown"


@row
def singledispatch_recursive(n):
    return (
        show([n, "a", [n, None]]),
        show(Shown()),
        sorted(each.__name__ for each in show.registry),
        show.dispatch(bool)(True),
    )


# %%
class Formatter:
    @singledispatchmethod
    def format(self, value):
        return f"any {value}"

    @format.register
    def _(self, value: int):
        return f"int {value}"

    @format.register(str)
    def _(self, value):
        return f"str {self.format(len(value))}"

    @singledispatchmethod
    @classmethod
    def kind(cls, value):
        return cls.__name__

    @kind.register
    @classmethod
    def _(cls, value: int):
        return cls.__name__ + "-int"


@row
def singledispatch_method(n):
    formatter = Formatter()
    return formatter.format(n), formatter.format("abc"), formatter.format(1.5), Formatter.kind(n), Formatter.kind("a")


# %%
def power(base, exponent, *, plus=0):
    return base**exponent + plus


square = partial(power, exponent=2)
cube_plus = partial(partial(power, plus=1), exponent=3)


@row
def partial_of_a_function(n):
    return square(n), cube_plus(n), square.keywords, square.func is power


# %%
class Switch:
    def set_state(self, state, *, loud=False):
        return state, loud

    on = partialmethod(set_state, "on")
    off = partialmethod(set_state, "off", loud=True)


@row
def partial_method(n):
    return Switch().on(), Switch().off()


# %%
@contextmanager
def tagged(name):
    TAGS.append(name)
    try:
        yield name.upper()
    finally:
        TAGS.pop()


TAGS = []


@row
def contextmanager_function(n):
    with tagged("a") as name:
        inside = list(TAGS)
    return name, inside, list(TAGS)


# %%
@tagged("decorating")
def tagged_function():
    return list(TAGS)


@row
def contextmanager_as_a_decorator(n):
    return tagged_function()


# %%
class Timer(contextlib.ContextDecorator):
    def __enter__(self):
        self.entered = True
        return self

    def __exit__(self, *_):
        return False


@Timer()
def timed(n):
    return n + 3


@row
def context_decorator_class(n):
    return timed(n)


# %%
@contextlib.asynccontextmanager
async def session(name):
    yield name * 2


@row
async def async_with_asynccontextmanager(n):
    async with session("ab") as name:
        return name, n


# %%
def retry(times):
    attempts = 0

    def decorate(function):
        @wraps(function)
        def wrapper(*args):
            nonlocal attempts
            attempts = 0
            while True:
                attempts += 1
                try:
                    return function(*args), attempts
                except ValueError:
                    if attempts >= times:
                        raise

        return wrapper

    return decorate


FAILS = {"left": 0}


@row
@retry(5)
def retry_decorator(n):
    FAILS["left"] = 2 if FAILS["left"] == 0 else FAILS["left"] - 1
    if FAILS["left"]:
        raise ValueError("again")
    return n


# %%
COMMANDS = {}


def command(name=None):
    def register(function):
        COMMANDS[name or function.__name__] = function
        return function

    return register


@command()
def start(n):
    return f"start {n}"


@command("halt")
def stop(n):
    return f"halt {n} {sorted(COMMANDS)}"


@row
def registry_of_decorated_functions(n):
    return COMMANDS["start"](n), COMMANDS["halt"](n), COMMANDS["start"] is start


# %%
def typed_check(function):
    import inspect
    import typing

    hints = typing.get_type_hints(function)
    signature = inspect.signature(function)

    @wraps(function)
    def wrapper(*args):
        for name, value in signature.bind(*args).arguments.items():
            if not isinstance(value, hints[name]):
                raise TypeError(f"{name} must be {hints[name].__name__}")
        return function(*args)

    return wrapper


@typed_check
def strict(n: int, text: str):
    return text * n


@row
def decorator_that_inspects_signatures(n):
    try:
        strict("a", "b")
    except TypeError as error:
        return strict(n, "ab"), str(error)


# %%
class memoized:
    def __init__(self, function):
        self.function, self.memory = function, {}

    def __get__(self, instance, owner):
        return partial(self, instance)

    def __call__(self, *args):
        if args[1:] not in self.memory:
            self.memory[args[1:]] = self.function(*args)
        return self.memory[args[1:]]


class Uses:
    @memoized
    def slow(self, n):
        return n + 100


@row
def descriptor_as_a_decorator_of_methods(n):
    return Uses().slow(n), Uses().slow(n)


# %%
def add_attribute(**attributes):
    def decorate(function):
        vars(function).update(attributes)
        return function

    return decorate


@add_attribute(unit="m", scale=3)
def length(n):
    return n * length.scale


@row
def function_attributes(n):
    return length(n), length.unit, vars(length)


# %%
def accumulate_calls(function):
    def wrapper(n):
        wrapper.calls += 1
        return function(n)

    wrapper.calls = 0
    return wrapper


@accumulate_calls
def noted(n):
    return n


@row
def wrapper_with_a_counter_attribute(n):
    before = noted.calls
    noted(n)
    noted(n)
    return noted.calls - before


# %%
@property
def module_level_property(self):
    return 5


class UsesProperty:
    five = module_level_property
    getter = property(operator.attrgetter("n"))
    n = 9


@row
def property_from_outside(n):
    return UsesProperty().five, UsesProperty().getter


# %%
@staticmethod
def module_static(n):
    return n + 21


@row
def staticmethod_at_module_level(n):
    return module_static(n)


# %%
compose = lambda *functions: reduce(lambda f, g: lambda x: g(f(x)), functions)  # noqa: E731
pipeline = compose(lambda x: x + 1, lambda x: x * 2, str)


@row
def composed_lambdas(n):
    return pipeline(n)
