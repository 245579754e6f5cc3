# %%
import asyncio
import contextlib
import sys
import traceback
from driver import row


# %%
@row
def raises_builtin(n):
    raise ValueError("bad", n)


@row
def raises_key_error(n):
    return {}[n]


@row
def raises_os_error_with_errno(n):
    open(f"/nowhere/{n}")


@row
def raises_unicode_error(n):
    b"\xff".decode("utf-8")


@row
def raises_assertion(n):
    assert n == 0, f"{n} is not 0"


@row
def raises_zero_division_in_a_helper(n):
    return divides(n)


def divides(n):
    return n / 0


# %%
class PlainError(Exception):
    pass


@row
def raises_own_class(n):
    raise PlainError("own", n)


# %%
class CodeError(Exception):
    def __init__(self, code, message="failed"):
        super().__init__(f"{code}: {message}")
        self.code = code


@row
def raises_own_init_with_other_args(n):
    raise CodeError(n, "because")


# %%
class TwoRequired(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b


@row
def raises_own_init_with_two_required(n):
    raise TwoRequired(n, "b")


# %%
class KeywordOnly(RuntimeError):
    def __init__(self, *, field):
        super().__init__(field)
        self.field = field


@row
def raises_own_init_with_keywords_only(n):
    raise KeywordOnly(field=n)


# %%
class NoSuper(Exception):
    def __init__(self, a):
        self.a = a

    def __str__(self):
        return f"no super {self.a}"


@row
def raises_own_init_without_super(n):
    raise NoSuper(n)


# %%
class SlotError(Exception):
    __slots__ = ("code",)

    def __init__(self, code):
        super().__init__(code)
        self.code = code


@row
def raises_with_slots(n):
    raise SlotError(n)


@row
def returns_slots_of_a_caught_error(n):
    try:
        raise SlotError(n)
    except SlotError as error:
        return error.code, error.args


# %%
class Family(Exception):
    pass


class ChildOfFamily(Family, KeyError):
    pass


@row
def raises_a_subclass(n):
    raise ChildOfFamily(n)


# %%
@row
def raises_from_another(n):
    try:
        divides(n)
    except ZeroDivisionError as error:
        raise PlainError("wrapped") from error


@row
def raises_while_handling(n):
    try:
        divides(n)
    except ZeroDivisionError:
        raise PlainError("in context")


@row
def raises_from_none(n):
    try:
        divides(n)
    except ZeroDivisionError:
        raise PlainError("alone") from None


# %%
@row
def raises_a_group(n):
    raise ExceptionGroup("several", [ValueError(n), PlainError("in a group")])


class OwnGroup(ExceptionGroup):
    def derive(self, exceptions):
        return OwnGroup(self.message, exceptions)


@row
def raises_own_group(n):
    raise OwnGroup("mine", [ValueError(n)])


@row
async def raises_in_a_task_group(n):
    async with asyncio.TaskGroup() as group:
        group.create_task(fails_async(n))


async def fails_async(n):
    raise PlainError("async", n)


# %%
@row
def raises_with_notes(n):
    error = PlainError("noted")
    error.add_note(f"note {n}")
    error.extra = {"n": n}
    raise error


# %%
@row
def raises_name_error(n):
    return undefined_name_of_raises


@row
def raises_attribute_error(n):
    return n.nothing


@row
def raises_type_error(n):
    return len(n)


@row
def raises_recursion_error(n):
    return raises_recursion_error.__wrapped__(n) if False else endless(n)


def endless(n):
    return endless(n)


# %%
@row
def raises_import_error(n):
    import module_that_does_not_exist


@row
def raises_module_of_name(n):
    from os import name_that_does_not_exist


# %%
@row
def raises_an_error_with_a_function(n):
    raise PlainError(divides)


@row
def raises_an_error_with_an_instance(n):
    raise PlainError([PlainError, n])


# %%
# %%
# %%
@row
def raises_timeout_and_cancelled(n):
    raise TimeoutError("slow")


# %%
@row
def raises_in_a_finally_and_contextmanager(n):
    with contextlib.suppress(KeyError):
        try:
            {}["a"]
        finally:
            raise PlainError("finally")


# %%
@row
def catches_its_own_class_raised_by_a_helper(n):
    try:
        raise CodeError(n)
    except CodeError as error:
        return error.code, traceback.format_exception_only(error)


# %%
class Retryable(Exception):
    retryable = True

    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return Retryable, (self.n,)

    @property
    def args_again(self):
        return (self.n,)


@row
def raises_with_reduce(n):
    raise Retryable(n)
