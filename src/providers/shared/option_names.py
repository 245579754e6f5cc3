"""Errors for unknown options, and for values of a wrong type. For an unknown option, the error names the option that
the user probably meant, even if the name is from a similar library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache, wraps
from inspect import signature
from typing import Any, TypeVar

T = TypeVar("T")

# Names count as alike from this similarity (difflib) on. With a lower limit, A40 would match A10, and "counter" would
# match "compute".
ALIKE = 0.75

# Name in a similar library -> Outrider's names with this meaning; an error suggests the first that is an option here.
SAME = {
    "gpus": ("accelerator",),
    "gpu": ("accelerator",),
    "cpus": ("vcpus",),
    "memory": ("memory_gb", "memory_limit"),
    "num_cpus": ("cpus", "vcpus"),
    "num_gpus": ("gpus", "accelerator"),
    "num_nodes": ("nodes",),
    "min_nodes": ("min",),
    "max_nodes": ("max",),
    "initial": ("desired",),
    "executor": ("kind",),
    "step": ("at_step",),
    "bucket": ("url",),
    "packages": ("pip",),
    "ttl": ("lease",),
    "cooldown": ("idle",),
    "idle_timeout": ("idle",),
    "spot": ("allocation",),
    "nproc_per_node": ("ranks_per_node",),
    "pinned_memory_limit": ("memory_limit",),
    "cache_dir": ("home",),
    "username": ("user",),
    "host": ("hosts", "name"),
    "addresses": ("hosts",),
    "keyfile": ("key",),
    "private_key": ("key",),
    "key_filename": ("key",),
    "identity_file": ("key",),
    "image_id": ("ami",),
    "machine_types": ("instance_types",),
    "availability_zones": ("zones",),
}

_BUILD = "the build of a package for a version of CUDA comes by Image(pip=[...], pip_indexes=[...])"
_PACKAGE = 'the version of a package is said by Image(pip=["name==1.2"])'
_MODEL = "a model is fetched by what loads it, as in @compute(setup=load_model); home= says where nodes keep it"
_HEALTH = "silent nodes are replaced, and tasks report ill ones by a file: see the guide on lost nodes"
MEANINGS = {  # names for which Outrider has no option -> what to do instead
    "cuda": _BUILD,
    "version": _PACKAGE,
    "models": _MODEL,
    "options": "its entries are options of the pool itself",
    "region": "regions are the provider's: AWS(region=...)",
    "health": _HEALTH,
    "health_checker": _HEALTH,
    "shell_vars": "variables are env={...}",
}

_OF_SSH = frozenset({"host", "hosts", "addresses", "ssh"})
OF_POOL = frozenset({
    "accelerator", "vcpus", "memory_gb", "disk_gb", "architecture", "allocation", "max_hourly_cost", "interconnect",
    "nodes", "worker", "image", "plugins", "volumes", "lease", "boot_timeout", "max_cost", "max_lifetime", "console",
})  # fmt: skip
OF_IMAGE = frozenset({"pip", "apt", "requirements", "lock", "includes", "env", "python"})


def not_an_option(owner: str, name: str, known: Collection[str]) -> str:
    """Return the error text for the unknown option ``name``. ``owner``: the class or function that was called."""
    return f"{owner} has no option {name!r}: {_meant(name, known)}"


def checking_options(kind: type[T], error: Callable[[str], Exception], *, values: bool = True) -> type[T]:
    """Make a class raise ``error`` for options that its ``__init__`` does not have.

    ``values``: True also raises ValueError if a value has another type than declared, as far as `wrong_kind` can check.
    False: the class checks its values itself.
    """
    make = kind.__init__

    @cache
    def known() -> list[str]:  # computed only when needed: it is slow, and many programs pass no option to the class
        return list(signature(kind).parameters)

    @cache
    def declared() -> Mapping[str, str]:
        if "kwargs" not in make.__annotations__:
            return {name: of for name, of in make.__annotations__.items() if name != "return"}
        dataclass_type: Any = kind  # the class is a lazy dataclass, whose `__init__` has only **kwargs
        return {field.name: str(field.type) for field in fields(dataclass_type) if field.init}

    @wraps(make)
    def init(self: T, *args: Any, **options: Any) -> None:
        for name in options:
            if name not in known():
                raise error(not_an_option(kind.__name__, name, known()))
        if values and (args or options):
            for name, value in {**dict(zip(declared(), args, strict=False)), **options}.items():
                if why := wrong_kind(f"{kind.__name__}({name}=...)", value, declared().get(name, "")):
                    raise ValueError(why)
        make(self, *args, **options)

    kind.__init__ = init  # type: ignore[assignment]
    return kind


def wrong_kind(option: str, value: object, declared: str) -> str:
    """Return the error text if a value does not fit the declared type of its option, such as ``int | None``.

    Empty: the value fits, or the declaration has a type that is not in `_KINDS`. True and False do not count as
    numbers.
    """
    kinds = declared.split(" | ")
    if not _KINDS.keys() >= {*kinds}:
        return ""
    fitting = ["bool"] if isinstance(value, bool) else [each for each in kinds if each != "bool"]
    if any(isinstance(value, _KINDS[each]) for each in fitting if each in kinds):
        return ""
    words = dict.fromkeys(_WORDS[each] for each in kinds if each in _WORDS)
    return f"{option} takes {' or '.join(words)}, not {shown(value)}"


_KINDS: dict[str, tuple[type, ...]] = {
    "None": (type(None),),
    "bool": (bool,),
    "float": (int, float),
    "int": (int,),
    "os.PathLike[str]": (os.PathLike,),
    "str": (str,),
    "StrPath": (str, os.PathLike),
}
_WORDS = {
    "bool": "True or False",
    "float": "a number",
    "int": "a whole number",
    "os.PathLike[str]": "a path",
    "str": "a text",
    "StrPath": "a path",
}


def shown(value: object) -> str:
    """Return a value as text for an error. The value's own ``repr`` may raise, or be too long for people or for
    Python.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a foreign __repr__ may raise; so does an integer with thousands of digits
        text = f"something of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meant(name: str, known: Collection[str]) -> str:
    if about_hosts := _meant_of_hosts(name, known):
        return about_hosts
    same = [each for each in SAME.get(name, ()) if each in known]
    if close := same[0] if same else closest(name, known):
        return f"did you mean {close!r}?"
    if name in OF_IMAGE and "image" in known:
        return f"it is one of Image: image=Image({name}=...)."
    ours = {name, *SAME.get(name, ())} & OF_POOL
    if ours and not OF_POOL.intersection(known):
        return f"it is one of Pool: Pool({min(ours)}=...)."
    if name in MEANINGS:
        return f"{MEANINGS[name]}."
    return f"it has {', '.join(sorted(known)) or 'none'}."


def _meant_of_hosts(name: str, known: Collection[str]) -> str:
    """Return advice for an option that describes the user's own hosts, if it was given to another class than `SSH`."""
    if name in _OF_SSH and "nodes" in known and "provider" in known:
        return "hosts are the provider's: Pool(provider=SSH(hosts=[...]))."
    if name == "port" and "hosts" in known:
        return "a port stands behind its host: SSH(hosts=['gpu1:2222'])."
    if name in ("host", "hosts") and "hosts" not in known and "region" in known:
        return "hosts of your own are those of provider=SSH(hosts=[...]): leave the other provider out."
    return ""


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that the user probably meant; empty: no known name is similar."""
    from difflib import get_close_matches

    return "".join(get_close_matches(name, known, n=1, cutoff=ALIKE))
