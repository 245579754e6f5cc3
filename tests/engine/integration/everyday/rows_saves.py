# %%
import base64
import copy
import csv
import io
import json
import marshal
import pickle
import shelve
import sqlite3
import sys
import tempfile
import types
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from driver import row


# %%
@dataclass
class Saved:
    n: int


class Kind(Enum):
    A = 1


@row
def pickle_round_trip(n):
    return pickle.loads(pickle.dumps(Saved(n))), pickle.loads(
        pickle.dumps([Saved, Kind.A, saved_helper, pickle_round_trip])
    )


def saved_helper(n):
    return n


@row
def pickle_to_a_file(n):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pickle"
        path.write_bytes(pickle.dumps({"saved": Saved(n)}))
        return pickle.loads(path.read_bytes())


@row
def returns_pickled_bytes(n):
    return Unpickled(pickle.dumps(Saved(n)))


class Unpickled:
    """Pickled bytes, compared by what they contain."""

    def __init__(self, data):
        self.data = data

    def __eq__(self, other):
        return pickle.loads(self.data) == pickle.loads(other.data)


# %%
class NotMentioned:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n


class NotMentionedSub(NotMentioned):
    pass


BYTES = base64.b64encode(pickle.dumps([NotMentioned(4), NotMentionedSub(5)]))


@row
def unpickles_classes_that_are_not_mentioned(n):
    loaded = pickle.loads(base64.b64decode(BYTES))
    return loaded, type(loaded[0]).__name__


def not_mentioned_function(n):
    return n * 9


FUNCTION_BYTES = pickle.dumps(not_mentioned_function)


@row
def unpickles_functions_that_are_not_mentioned(n):
    return pickle.loads(FUNCTION_BYTES)(n)


# %%
@row
def deepcopy_and_copy(n):
    saved = Saved(n)
    copied = copy.deepcopy([saved, saved])
    return copied, copied[0] is copied[1], copy.copy(saved), copy.replace(saved, n=1) if hasattr(copy, "replace") else 0


# %%
@row
def marshal_code(n):
    code = marshal.loads(marshal.dumps(saved_helper.__code__))
    return types.FunctionType(code, globals())(n)


# %%
@row
def shelve_of_own_classes(n):
    with tempfile.TemporaryDirectory() as folder:
        with shelve.open(f"{folder}/shelf") as shelf:
            shelf["a"] = Saved(n)
        with shelve.open(f"{folder}/shelf") as shelf:
            return shelf["a"]


# %%
class Encoder(json.JSONEncoder):
    def default(self, value):
        return {"saved": value.n} if isinstance(value, Saved) else super().default(value)


@row
def json_with_encoder_and_hook(n):
    text = json.dumps([Saved(n)], cls=Encoder)
    return text, json.loads(text, object_hook=lambda found: Saved(found["saved"])), json.dumps(asdict(Saved(n)))


# %%
# %%
class OwnPickler(pickle.Pickler):
    def persistent_id(self, value):
        return ("saved", value.n) if isinstance(value, Saved) else None


class OwnUnpickler(pickle.Unpickler):
    def persistent_load(self, key):
        return Saved(key[1])

    def find_class(self, module, name):
        return super().find_class(module, name)


@row
def own_pickler_and_unpickler(n):
    file = io.BytesIO()
    OwnPickler(file).dump([Saved(n), Kind.A])
    return OwnUnpickler(io.BytesIO(file.getvalue())).load()


# %%
@row
def sqlite_with_own_function(n):
    with sqlite3.connect(":memory:") as database:
        database.create_function("saved", 1, saved_helper)
        return database.execute("select saved(?)", [n]).fetchone()


@row
def csv_writer(n):
    file = io.StringIO()
    csv.writer(file).writerows([[n, "a"], [1, "b"]])
    return file.getvalue()


# %%
class Nested_:
    class Deep:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

    @staticmethod
    def helper(n):
        return n


@row
def pickle_of_nested_classes_and_methods(n):
    return pickle.loads(pickle.dumps(Nested_.Deep(n))), pickle.loads(pickle.dumps(Nested_.helper))(n)


# %%
class SlotSaved:
    __slots__ = ("a", "__b")

    def __init__(self, a):
        self.a, self.__b = a, a + 1

    def both(self):
        return self.a, self.__b


@row
def pickle_of_slots(n):
    return pickle.loads(pickle.dumps(SlotSaved(n))).both(), copy.deepcopy(SlotSaved(n)).both()


# %%
@row
def pickle_by_name_of_a_late_name(n):
    return pickle.loads(b"c" + __name__.encode() + b"\nLateName\n.")().n


class LateName:
    n = 44


# %%
@row
def deepcopy_of_a_global(n):
    copied = copy.deepcopy(STATE)
    copied["a"].append(n)
    return copied, STATE


STATE = {"a": [Saved(1)]}


# %%
@row
def qualified_names(n):
    return (
        Saved.__module__ == __name__,
        Saved.__qualname__,
        saved_helper.__module__ == __name__,
        Nested_.Deep.__qualname__,
    )


# %%
@row
def is_instance_of_a_looked_up_class(n):
    found = getattr(sys.modules[Saved.__module__], "Saved")
    return isinstance(Saved(n), found), found is Saved, type(Saved(n)) is found
