# %%
import abc
import dataclasses
import enum
import typing
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from enum import Enum, Flag, IntEnum, StrEnum, auto
from functools import cached_property, total_ordering
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar, runtime_checkable
from driver import row


# %%
@dataclass
class Point:
    x: int
    y: int = 0
    tags: list = field(default_factory=list)

    def moved(self, dx: int) -> "Point":
        return dataclasses.replace(self, x=self.x + dx)


@row
def dataclass_plain(n):
    point = Point(n, tags=["a"]).moved(1)
    return point, dataclasses.asdict(point), [each.name for each in dataclasses.fields(Point)]


# %%
@dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0


@row
def dataclass_frozen(n):
    versions = {Version(n): "new", Version(1, 2): "old"}
    try:
        Version(1).major = 2
    except dataclasses.FrozenInstanceError as error:
        kept = str(error)
    return versions, max(versions), kept


# %%
@dataclass(slots=True)
class Slim:
    a: int
    b: str = "b"


@row
def dataclass_slots(n):
    slim = Slim(n)
    return slim, hasattr(slim, "__dict__"), Slim.__slots__


# %%
@dataclass(slots=True, frozen=True, weakref_slot=True)
class SlimFrozen:
    a: int


@row
def dataclass_slots_frozen_weakref(n):
    import weakref

    slim = SlimFrozen(n)
    return slim, weakref.ref(slim)() is slim, {slim: 1}


# %%
@dataclass(kw_only=True)
class Settings:
    depth: int
    name: str = "default"


@row
def dataclass_kw_only(n):
    try:
        Settings(n)
    except TypeError as error:
        return Settings(depth=n), type(error)


# %%
@dataclass
class WithInitVar:
    width: int
    scale: InitVar[int] = 2
    area: int = field(init=False)

    def __post_init__(self, scale):
        self.area = self.width * scale


@row
def dataclass_init_var(n):
    return WithInitVar(n, 10), WithInitVar(n).area


# %%
@dataclass
class Animal:
    name: str
    kinds: ClassVar[list] = []

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        Animal.kinds.append(cls.__name__)

    def sound(self):
        return "..."


@dataclass
class Dog(Animal):
    age: int = 1

    def sound(self):
        return super().sound() + "wuff"


@dataclass
class Puppy(Dog):
    def sound(self):
        return super().sound().upper()


@row
def dataclass_inheritance(n):
    return Puppy("rex", n), Puppy("rex").sound(), sorted(set(Animal.kinds)), isinstance(Puppy("a"), Animal)


# %%
class Coordinate(NamedTuple):
    """A place."""

    lat: float
    lon: float = 0.5

    def swapped(self):
        return Coordinate(self.lon, self.lat)


@row
def typing_named_tuple(n):
    place = Coordinate(n)
    return place, place.swapped(), place._asdict(), Coordinate._field_defaults, Coordinate.__doc__


# %%
Pair = namedtuple("Pair", "left right", defaults=[7])


@row
def collections_namedtuple(n):
    return Pair(n), Pair(1, 2)._replace(left=n), Pair._fields


# %%
class Triple(namedtuple("Triple", "a b c")):
    __slots__ = ()

    def total(self):
        return sum(self)


@row
def namedtuple_subclass(n):
    return Triple(n, 1, 2), Triple(n, 1, 2).total()


# %%
class Colour(Enum):
    RED = auto()
    GREEN = auto()
    CRIMSON = RED

    @property
    def pretty(self):
        return self.name.title()

    @classmethod
    def _missing_(cls, value):
        return cls.GREEN if value == "verde" else None


@row
def enum_methods_aliases_missing(n):
    return Colour.RED, Colour.CRIMSON is Colour.RED, Colour("verde"), Colour.GREEN.pretty, list(Colour), Colour["RED"]


# %%
@row
def enum_member_arrives_as_the_member(n):
    return [Colour(1), {Colour.GREEN: n}]


# %%
class Permission(Flag):
    READ = auto()
    WRITE = auto()
    BOTH = READ | WRITE


@row
def enum_flag(n):
    return Permission.READ | Permission.WRITE, Permission.READ in Permission.BOTH, ~Permission.READ, Permission(0)


# %%
class Level(IntEnum):
    LOW = 1
    HIGH = 10


class Mode(StrEnum):
    FAST = auto()
    SLOW = "slow-mode"


@row
def int_and_str_enum(n):
    return (
        Level.HIGH + n,
        Level(10),
        Mode.FAST + "!",
        Mode("slow-mode"),
        f"{Mode.FAST}",
        sorted([Level.HIGH, Level.LOW]),
    )


# %%
class Planet(Enum):
    MERCURY = (3.303e23, 2.4397e6)
    EARTH = (5.976e24, 6.37814e6)

    def __init__(self, mass, radius):
        self.mass = mass
        self.radius = radius


@row
def enum_with_init(n):
    return Planet.EARTH, Planet.EARTH.mass, Planet((3.303e23, 2.4397e6))


# %%
Shape = Enum("Shape", ["ROUND", "SQUARE"])


@row
def enum_functional(n):
    return Shape.ROUND, list(Shape), Shape["SQUARE"].value


# %%
@enum.unique
class Unique(Enum):
    A = 1
    B = 2

    def __str__(self):
        return self.name.lower()


@row
def enum_unique_str(n):
    return str(Unique.A), Unique.B, {each: each.value for each in Unique}


# %%
class Movie(TypedDict, total=False):
    name: str
    year: int


@row
def typed_dict(n):
    film: Movie = {"name": "M", "year": 1900 + n}
    return film, Movie.__total__, sorted(Movie.__optional_keys__)


# %%
@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


class Gate:
    def close(self):
        pass


@row
def protocol(n):
    return isinstance(Gate(), Closes), isinstance(n, Closes)


# %%
class Base(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def label(self): ...


class Square(Base):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2

    label = "square"


@Base.register
class Duck:
    pass


@row
def abstract_class(n):
    try:
        Base()
    except TypeError as error:
        text = str(error)
    return Square(n).area(), text, isinstance(Square(1), Base), issubclass(Square, Base), issubclass(Duck, Base)


# %%
Item = TypeVar("Item")


class Crate(Generic[Item]):
    def __init__(self, item: Item):
        self.item = item

    def __eq__(self, other):
        return type(other) is type(self) and other.item == self.item

    def get(self) -> Item:
        return self.item


class IntBox(Crate[int]):
    pass


@row
def generic(n):
    return (
        Crate[int](n),
        IntBox(n).get(),
        IntBox(n),
        typing.get_args(Crate[int]),
        IntBox.__orig_bases__ == (Crate[int],),
    )


# %%
class Registering(type):
    known = {}

    def __new__(mcs, name, bases, space, **options):
        cls = super().__new__(mcs, name, bases, space)
        mcs.known[name] = options
        return cls

    def __init__(cls, name, bases, space, **options):
        super().__init__(name, bases, space)

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.stamped = True
        return made


class Plain(metaclass=Registering):
    pass


@row
def metaclass_without_keywords(n):
    return Plain().stamped, type(Plain).__name__, "Plain" in Registering.known


# %%
class Keyed(metaclass=Registering, colour="red"):
    def who(self):
        return type(self).__name__


@row
def metaclass_with_keywords(n):
    return Keyed().who(), Keyed().stamped, Registering.known["Keyed"]


# %%
class Ordered(type):
    def __prepare__(name, bases, **options):
        return {"prepared": True}

    def __len__(cls):
        return 7

    def __getitem__(cls, key):
        return cls.__name__ + str(key)

    @property
    def shout(cls):
        return cls.__name__.upper()


class Listed(metaclass=Ordered):
    pass


@row
def metaclass_with_prepare_and_methods(n):
    return len(Listed), Listed[n], Listed.shout, Listed.prepared


# %%
class Plugin:
    registry = {}

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        Plugin.registry[cls.__name__] = cls


class Reader(Plugin):
    def run(self, n):
        return n + 1


class Writer(Plugin):
    def run(self, n):
        return n + 2


@row
def init_subclass_registry(n):
    return sorted(Plugin.registry), Plugin.registry["Writer"]().run(n), Plugin.registry["Reader"] is Reader


# %%
class Handler:
    handlers = {}

    def __init_subclass__(cls, /, *, code, **options):
        super().__init_subclass__(**options)
        cls.code = code
        Handler.handlers[code] = cls


class NotFound(Handler, code=404):
    pass


class Teapot(Handler, code=418):
    pass


@row
def init_subclass_required_keywords(n):
    return NotFound.code, Handler.handlers[418].__name__, sorted(Handler.handlers)


# %%
class CodedBase:
    def __init_subclass__(cls, *, code, **options):
        super().__init_subclass__(**options)
        cls.code = code


class Coded(CodedBase, code=5):
    pass


@row
def init_subclass_required_keywords_without_registry(n):
    return Coded.code, Coded().code


# %%
class Colouring(type):
    def __new__(mcs, name, bases, space, *, colour):
        cls = super().__new__(mcs, name, bases, space)
        cls.colour = colour
        return cls

    def __init__(cls, name, bases, space, *, colour):
        super().__init__(name, bases, space)


class Coloured(metaclass=Colouring, colour="red"):
    pass


@row
def metaclass_with_required_keywords(n):
    return Coloured.colour, type(Coloured) is Colouring


# %%
class Collecting(type):
    def __new__(mcs, name, bases, space):
        if "fields" not in space:
            raise TypeError(f"{name} needs fields")
        space["collected"] = sorted(key for key in space if not key.startswith("_"))
        return super().__new__(mcs, name, bases, space)


class Collected(metaclass=Collecting):
    fields = ("a", "b")

    def method(self):
        return self.collected


@row
def metaclass_that_looks_at_the_body(n):
    return Collected().method()


# %%
class Positive:
    def __set_name__(self, owner, name):
        self.name = name
        self.owner = owner.__name__

    def __get__(self, instance, owner=None):
        return self if instance is None else instance.__dict__.get(self.name, 0)

    def __set__(self, instance, value):
        if value < 0:
            raise ValueError(f"{self.owner}.{self.name} must not be negative")
        instance.__dict__[self.name] = value


class Account:
    balance = Positive()

    def __init__(self, balance):
        self.balance = balance


@row
def descriptor_with_set_name(n):
    account = Account(n)
    try:
        account.balance = -1
    except ValueError as error:
        return account.balance, str(error), Account.balance.name


# %%
class SlotsBase:
    __slots__ = ("__secret", "a")

    def __init__(self, a):
        self.a = a
        self.__secret = a * 2

    def secret(self):
        return self.__secret


class SlotsChild(SlotsBase):
    __slots__ = ("b",)

    def __init__(self, a, b):
        super().__init__(a)
        self.b = b

    def __eq__(self, other):
        return (self.a, self.b, self.secret()) == (other.a, other.b, other.secret())


@row
def slots_inheritance_private(n):
    child = SlotsChild(n, 2)
    return child, child.secret(), SlotsBase.__slots__, hasattr(child, "__dict__")


# %%
class SlotsOpen:
    __slots__ = ("a", "__dict__", "__weakref__")

    def __init__(self, a):
        self.a = a
        self.free = "x"

    def __eq__(self, other):
        return (self.a, self.free) == (other.a, other.free)


@row
def slots_with_dict_and_weakref(n):
    import weakref

    made = SlotsOpen(n)
    return made, weakref.ref(made)() is made, made.__dict__


# %%
class SlotString:
    __slots__ = "only"

    def __eq__(self, other):
        return self.only == other.only


@row
def slots_string(n):
    made = SlotString()
    made.only = n
    return made, SlotString.__slots__


# %%
class Vector:
    def __class_getitem__(cls, size):
        return f"{cls.__name__}[{size}]"


@row
def class_getitem(n):
    return Vector[n]


# %%
class Circle:
    total = 0

    def __init__(self, radius):
        self._radius = radius

    @property
    def radius(self):
        return self._radius

    @radius.setter
    def radius(self, value):
        self._radius = abs(value)

    @radius.deleter
    def radius(self):
        self._radius = 0

    @cached_property
    def area(self):
        type(self).total += 1
        return 3 * self._radius**2

    @classmethod
    def unit(cls):
        return cls(1)

    @staticmethod
    def name():
        return "circle"

    def __eq__(self, other):
        return vars(self) == vars(other)


@row
def property_cached_property_classmethod(n):
    circle = Circle.unit()
    circle.radius = -n
    first, second = circle.area, circle.area
    before = circle
    del circle.radius
    return first, second, circle.radius, before, Circle.name(), Circle.area.attrname


# %%
class Left:
    def who(self):
        return ["left", *super().who()]


class Right:
    def who(self):
        return ["right"]


class Diamond(Left, Right):
    def who(self):
        return ["diamond", *super().who()]


@row
def super_in_diamond(n):
    return Diamond().who(), [each.__name__ for each in Diamond.__mro__]


# %%
class Outer:
    class Inner:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return type(self) is type(other) and self.n == other.n

        class Innermost(Enum):
            ONE = 1

    def make(self, n):
        return self.Inner(n)


@row
def nested_classes(n):
    return Outer().make(n), Outer.Inner.Innermost.ONE, Outer.Inner.__qualname__


# %%
@row
def local_class(n):
    class Local:
        def __init__(self, n):
            self.n = n

        def doubled(self):
            return self.n * 2

    return Local(n).doubled(), Local.__qualname__


# %%
def make_class(base):
    class Made(base):
        def double(self):
            return super().__add__(self)

    return Made


MadeInt = make_class(int)


@row
def class_from_a_factory(n):
    return MadeInt(n).double(), MadeInt.__qualname__


# %%
Typed = type("Typed", (), {"size": 5, "grow": lambda self, n: self.size + n})


@row
def class_by_type_call(n):
    return Typed().grow(n), Typed.__name__


# %%
DataMade = dataclasses.make_dataclass("DataMade", [("a", int), ("b", int, 2)])


@row
def class_by_make_dataclass(n):
    return dataclasses.astuple(DataMade(n)), DataMade(n).b


# %%
@total_ordering
class Ranked:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    def __lt__(self, other):
        return self.value < other.value

    def __hash__(self):
        return hash(self.value)


@row
def total_ordering_and_hash(n):
    return Ranked(n) >= Ranked(1), max([Ranked(n), Ranked(2)]), {Ranked(n): n}


# %%
class Money:
    def __init__(self, cents):
        self.cents = cents

    def __add__(self, other):
        return Money(self.cents + other.cents)

    __radd__ = lambda self, other: self  # noqa: E731

    def __eq__(self, other):
        return self.cents == other.cents

    def __call__(self, factor):
        return Money(self.cents * factor)

    def __getattr__(self, name):
        if name == "euros":
            return self.cents / 100
        raise AttributeError(name)

    def __getitem__(self, index):
        return [self.cents][index]

    def __iter__(self):
        return iter([self.cents])

    def __bool__(self):
        return self.cents != 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return True


@row
def special_methods(n):
    with Money(n) as money:
        raise ValueError("is suppressed")
    return sum([Money(1), Money(2)]), money(3), money.euros, money[0], list(money), bool(Money(0))


# %%
class SpecialList(list):
    def __init__(self, *items, name="list"):
        super().__init__(items)
        self.name = name


class SpecialDict(dict):
    def __missing__(self, key):
        return key * 2


class SpecialStr(str):
    def __new__(cls, text):
        return super().__new__(cls, text.upper())


class SpecialInt(int):
    pass


@row
def subclasses_of_builtins(n):
    made = SpecialList(n, 2, name="mine")
    return made, made.name, SpecialDict(a=1)[n], SpecialDict(a=1), SpecialStr("abc"), SpecialInt(n)


# %%
class Singleton:
    _instance = None

    def __new__(cls):
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance


@row
def singleton(n):
    return Singleton() is Singleton()


# %%
class Counted:
    made = 0

    def __init__(self):
        type(self).made += 1


@row
def class_attribute_counter(n):
    before = Counted.made
    for _ in range(n):
        Counted()
    return Counted.made - before


# %%
class Stateful:
    def __init__(self, n):
        self.n = n
        self.handle = open("/dev/null")  # noqa: PTH123, SIM115

    def __getstate__(self):
        return {"n": self.n}

    def __setstate__(self, state):
        self.__init__(state["n"])

    def __eq__(self, other):
        return self.n == other.n and not other.handle.closed


class Reduced:
    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return Reduced, (self.n + 1,)

    def __eq__(self, other):
        return isinstance(other, Reduced)


class WithNewArgs(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    def __getnewargs__(self):
        return tuple(self)


@row
def getstate_setstate_reduce(n):
    return Stateful(n), Reduced(n), WithNewArgs(n, 2)


# %%
@row
def pep_695_class_function_alias(n):
    import sys

    if sys.version_info < (3, 12):
        return None
    return Stack[int]([n]).pop(), first([n, 2]), str(IntList.__value__), Stack.__type_params__[0].__name__


if __import__("sys").version_info >= (3, 12):
    exec(
        """
class Stack[T]:
    def __init__(self, items: list[T]):
        self.items = items

    def pop(self) -> T:
        return self.items.pop()


def first[T](items: list[T]) -> T:
    return items[0]


type IntList = list[int]
"""
    )


# %%
class Meta(type):
    def __call__(cls, *args):
        key = (cls, args)
        if key not in INSTANCES:
            INSTANCES[key] = super().__call__(*args)
        return INSTANCES[key]


INSTANCES = {}


class Flyweight(metaclass=Meta):
    def __init__(self, n):
        self.n = n


@row
def metaclass_that_uses_a_global(n):
    return Flyweight(n) is Flyweight(n), Flyweight(n).n


# %%
class Node_:
    def __init__(self, value, next_=None):
        self.value, self.next = value, next_

    def __repr__(self):
        return f"{self.value}->{self.next!r}"


@row
def class_that_names_itself(n):
    return repr(Node_(n, Node_(2)))


# %%
class Operation:
    table = {}

    @staticmethod
    def named(name):
        def register(function):
            Operation.table[name] = function
            return function

        return register


@Operation.named("twice")
def twice_operation(n):
    return n * 2


@row
def class_table_of_functions(n):
    return Operation.table["twice"](n), Operation.table["twice"] is twice_operation


# %%
class Conditional:
    if __debug__:

        def debug(self):
            return "debug"

    for _name in ("a", "b"):
        locals()[_name] = _name * 2
    del _name


@row
def class_body_with_control_flow(n):
    return Conditional().debug(), Conditional.a, Conditional().b


# %%
class Lazy:
    def __getattribute__(self, name):
        return name if name.startswith("get_") else super().__getattribute__(name)

    def __setattr__(self, name, value):
        super().__setattr__(name, value + 1)

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n


@row
def getattribute_and_setattr(n):
    return Lazy(n).n, Lazy(n).get_it, Lazy(n)
