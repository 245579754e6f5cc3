# %%
import array
import collections
import datetime
import functools
import io
import operator
import types
import zoneinfo
from dataclasses import dataclass, field
from driver import row


# %%
@dataclass
class Result:
    loss: float
    history: list = field(default_factory=list)


@row
def returns_instances(n):
    return [Result(n / 2, [n]), Result(0.0)], {"best": Result(1.0)}


# %%
@row
def returns_a_class(n):
    return Result


@row
def returns_a_function(n):
    return returned_function


def returned_function(n):
    return n + 1


# %%
def adder(k):
    def add(x):
        return x + k

    return add


@row
def returns_a_closure(n):
    return Called(adder(n), 10)


class Called:
    """A function, compared by what it returns."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __eq__(self, other):
        return self.function(*self.args) == other.function(*other.args)


@row
def returns_a_lambda_and_a_partial(n):
    return (
        Called(lambda x: x * n, 3),
        Called(functools.partial(returned_function, n)),
        Called(operator.itemgetter(0), [n]),
    )


# %%
class Bound:
    def __init__(self, n):
        self.n = n

    def get(self):
        return self.n

    def __eq__(self, other):
        return self.n == other.n


@row
def returns_bound_methods(n):
    return Called(Bound(n).get), Called("ab".upper), Called(str.upper, "ab"), str.upper


# %%
@row
def returns_a_local_instance(n):
    @dataclass
    class Local:
        n: int

    return AsDict(Local(n))


class AsDict:
    """An instance, compared by its attributes."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return vars(self.value) == vars(other.value) and type(self.value).__name__ == type(other.value).__name__


# %%
# %%
@row
def returns_generators_as_lists(n):
    return list(i for i in range(n)), [*map(str, range(n))], dict(zip("abc", range(n)))


# %%
class Failed_(Exception):
    def __init__(self, code, *, hint=None):
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint

    def __eq__(self, other):
        return (type(self), self.code, self.hint) == (type(other), other.code, other.hint)

    def __reduce__(self):
        return functools.partial(Failed_, hint=self.hint), (self.code,)


@row
def returns_exceptions_as_values(n):
    return [AsText(ValueError("a", n)), Failed_(n, hint="h"), AsText(KeyError("k"))]


class AsText:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self.value) is type(other.value) and repr(self.value) == repr(other.value)


# %%
class Tree:
    def __init__(self, name):
        self.name, self.children, self.parent = name, [], None

    def add(self, child):
        child.parent = self
        self.children.append(child)
        return self

    def __eq__(self, other):
        return (
            self.name == other.name
            and [c.name for c in self.children] == [c.name for c in other.children]
            and all(c.parent is other for c in other.children)
        )


@row
def returns_a_cyclic_tree(n):
    return Tree("root").add(Tree("a")).add(Tree(f"b{n}"))


# %%
@row
def returns_a_list_within_itself(n):
    made = [n]
    made.append(made)
    return Recursive(made)


class Recursive:
    def __init__(self, made):
        self.made = made

    def __eq__(self, other):
        return other.made[0] == self.made[0] and other.made[1] is other.made


# %%
class SelfReferring:
    def __init__(self, n):
        self.n = n
        self.me = self
        self.callback = self.get

    def get(self):
        return self.n

    def __eq__(self, other):
        return other.me is other and other.callback() == self.n


@row
def returns_a_self_referring_object(n):
    return SelfReferring(n)


# %%
@row
def returns_shared_parts_once(n):
    part = [n]
    return Shared_([part, part, {"a": part}])


class Shared_:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        a, b, c = other.value
        return a is b is c["a"] and a == self.value[0]


# %%
@row
def returns_sets_and_odd_keys(n):
    return {n, "a", (1, 2)}, frozenset({n}), {(1, "a"): n, None: 0, frozenset({1}): 2, Result: 3, len: 4}


# %%
@row
def returns_large_bytes(n):
    return bytes(range(256)) * 20000, bytearray(b"a" * 3000000), memoryview(b"abc" * n).tobytes()


@row
def returns_a_bytearray_and_an_array(n):
    return bytearray(b"abc"), array.array("d", [1.0, n])


# %%
# %%
@row
def returns_numbers(n):
    return n, -(10**50), 1.5, float("inf"), complex(1, n), True, None, Ellipsis, NotImplemented, range(n), slice(1, n)


# %%
@row
def returns_datetimes(n):
    berlin = zoneinfo.ZoneInfo("UTC")
    return datetime.datetime(2024, 1, n, tzinfo=berlin), datetime.timedelta(n), datetime.date(2024, 1, n), berlin


# %%
@row
def returns_namespaces_and_views(n):
    return types.SimpleNamespace(a=n), list({"a": n}.items()), collections.ChainMap({"a": n})


@row
def returns_dictionary_views(n):
    return {"a": n}.keys()


@row
def returns_a_mapping_proxy(n):
    return types.MappingProxyType({"a": n})


# %%
@row
def returns_modules_and_types(n):
    return operator, int, type(None), list[int], int | str, collections.OrderedDict


# %%
@row
def returns_a_buffer_and_a_file_in_memory(n):
    return Read(io.BytesIO(b"abc")), Read(io.StringIO("x" * n))


class Read:
    def __init__(self, file):
        self.file = file

    def __eq__(self, other):
        return self.file.getvalue() == other.file.getvalue()


# %%
# %%
# %%
@row
def returns_nested_deeply(n):
    made = n
    for _ in range(200):
        made = [made]
    return made


# %%
@row
def returns_strings(n):
    return "ä€𝄞", "\ud800"[:0], b"\x00\xff", "a" * 100000, ""


# %%
@row
def returns_nothing(n):
    pass


# %%
@row
def returns_the_row_itself(n):
    return returns_the_row_itself


# %%
@row
def returns_dataclass_with_function_fields(n):
    return Holder(returned_function, Result, [adder])


@dataclass
class Holder:
    function: object
    kind: type
    more: list
