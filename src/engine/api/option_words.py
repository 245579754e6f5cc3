"""Rewriting of Python options in messages, to TOML or to command-line options.

``AWS(region=...)`` becomes ``provider = { name = "aws", region = ... }`` in TOML, and ``--set provider.region=REGION``
on the command line of `outrider run`.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Protocol

from ...providers.registry import PROVIDERS


class Forms(Protocol):
    """The part of `language.Language` that this module needs: the form in which a message names an option."""

    def form_of(self, key: str, *, is_provider: bool = False) -> str: ...


def rewritten(text: str, language: Forms) -> str:
    """Return a message with its options in another language than Python."""
    parts, at = [], 0
    for match in _CALLS.finditer(text):
        end = _end(text, match.end())
        if match.start() < at or not end or _opens_a_pool(text, match):
            continue
        call = _parsed(text[match.start("call") : end])
        if call is None:
            continue
        start, end = _with_key(text, match, end)
        is_value = start < match.start("call")
        parts += [text[at:start], _rewritten(call, language, text[:start], text[end:], is_value=is_value)]
        at = end
    result = (
        "".join([*parts, text[at:]])
        .replace("True or False", "true or false")
        .replace("seconds or a timedelta", "seconds")
    )
    return re.sub(r"\bPool: (?=[a-z])", "", result)


# --- the calls in a message -------------------------------------------------------------------------------------------

# maps classes to names, such as AWS to aws
_PROVIDERS = {each.provider.partition(":")[2]: name for name, each in PROVIDERS.items()}
_TABLES = {"Pool": "", "Image": "image", "Worker": "worker", "Nodes": "nodes", "Chaos": "chaos"}
_IN_LISTS = {"Volume": "volumes", "Host": "provider.hosts", "Spec": "specs"}
FIRST = {  # for each class, the option that can be given without a name
    "AWS": "region",
    "Accelerator": "type",
    "Containers": "image",
    "GCP": "region",
    "Host": "name",
    "Nodes": "desired",
    "SSH": "hosts",
    "Slurm": "host",
    "Spec": "provider",
    "Volume": "url",
    "Worker": "concurrency",
}
_KINDS = "|".join([*_PROVIDERS, *_TABLES, *_IN_LISTS, "Accelerator"])
_CALLS = re.compile(rf"(?:\b(?P<key>\w+)=(?P<list>\[?))?(?P<call>\b(?:{_KINDS}|(?:accelerators|plugins)\.\w+)\()")


def _opens_a_pool(text: str, match: re.Match[str]) -> bool:
    """Return whether the match is part of a Python program, such as `with Pool(...) as pool`."""
    return match["call"] == "Pool(" and text[: match.start()].endswith("with ")


def _end(text: str, start: int) -> int:
    """Return the index after the bracket that closes the bracket before ``start``; 0: no bracket closes it."""
    depth, quote = 1, ""
    for index in range(start, len(text)):
        char = text[index]
        if quote:
            quote = "" if char == quote and text[index - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
            if not depth:
                return index + 1
    return 0


def _parsed(text: str) -> ast.Call | None:
    """Parse a call; values may be missing, as in ``SSH(user=, key=)``. Return None for invalid text."""
    try:
        complete = re.sub(r",\s*\.\.\.(?=\s*[)}])", "", re.sub(r"=\s*(?=[,)])", "=...", text))
        tree = ast.parse(complete, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, ast.Call) else None


def _with_key(text: str, match: re.Match[str], end: int) -> tuple[int, int]:
    """Return the start and end of a call, including its option if the call is an option's value
    (``provider=Local()``).
    """
    name = text[match.start("call") : match.end() - 1]
    key = match["key"]
    if match["list"]:
        is_value = key == _path(name).rpartition(".")[2] and text[end : end + 1] == "]"
        return (match.start(), end + 1) if is_value else (match.start("call"), end)
    return (match.start() if key and key == _path(name) else match.start("call")), end


def _path(name: str) -> str:
    """Return the pool's option whose value is an object of the class ``name``; empty: there is no such option."""
    if name in _PROVIDERS:
        return "provider"
    kind = name.partition(".")[0]
    return {"accelerators": "accelerator", "Accelerator": "accelerator", "plugins": "plugins"}.get(
        kind, _TABLES.get(kind, _IN_LISTS.get(kind, ""))
    )


# --- calls as TOML or as command-line options -------------------------------------------------------------------------

_SUBJECT = re.compile(r":| (?:takes|must|is|has|waits|would) ")
Pairs = list[tuple[str, ast.expr]]


def _rewritten(call: ast.Call, language: Forms, before: str, after: str, *, is_value: bool) -> str:
    """Rewrite one call. ``is_value``: the message also names the option of the call, as in ``provider=Local()``."""
    name = ast.unparse(call.func)
    path, pairs = _path(name), _pairs(name, call)
    forms: list[str]
    if name == "Pool" and pairs:
        forms = [language.form_of(key, is_provider=False) for key, _ in pairs]
    else:
        forms = [language.form_of(path.partition(".")[0], is_provider=name in _PROVIDERS)]
    if len(pairs) == 1 and _is_open(pairs[0][1]) and _SUBJECT.match(after) and (name in _TABLES or path == "provider"):
        return _subject(".".join(filter(None, (path, pairs[0][0]))), forms[0])
    if forms[0] == "toml":
        settings = _toml_settings(name, path, call, pairs)
        return ", ".join(settings) if before.endswith("`") else " and ".join(f"`{each}`" for each in settings)
    if forms[0] == "places":
        where = ",".join(f"{key}={_bare(key, value)}" for key, value in pairs)
        return f"--place {_PROVIDERS[name]}:{where}"
    arguments = _arguments(name, path, call, pairs)
    if is_value and name in _PROVIDERS and pairs and not arguments[0].startswith("--hosts "):
        arguments.insert(0, f"--provider {_PROVIDERS[name]}")
    return " ".join(dict.fromkeys(arguments))


def _pairs(name: str, call: ast.Call) -> Pairs:
    pairs: Pairs = []
    specs: list[ast.expr] = []
    for value in call.args:
        if isinstance(value, ast.Call):
            specs.append(value)
        elif isinstance(value, ast.Name):  # names of options, as in Image(pip, apt)
            pairs.append((value.id, ast.Constant(...)))
        elif not _is_open(value):
            pairs.append((FIRST.get(name, "name"), value))
    if specs:
        pairs.append(("specs", ast.List(specs)))
    return pairs + [(each.arg, each.value) for each in call.keywords if each.arg]


def _subject(path: str, form: str) -> str:
    if form != "options":
        return path
    return _SHORT.get(path, f"--image {path[6:]}" if path.startswith("image.") else f"--set {path}")


def _toml_settings(name: str, path: str, call: ast.Call, pairs: Pairs) -> list[str]:
    if name == "Pool":
        return [f"{key} = {_toml(value)}" for key, value in pairs] or ["[pools.NAME]"]
    value = _toml(call)
    if name in _IN_LISTS or path == "plugins":
        value = f"[{value}]"
    if path == "provider.hosts":
        return [f'provider = {{ name = "ssh", hosts = {value} }}']
    return [f"{path} = {value}"]


def _arguments(name: str, path: str, call: ast.Call, pairs: Pairs) -> list[str]:
    """Return the call as command-line options."""
    if name in _IN_LISTS:
        return [_argument(path, ast.List([call]))]
    if name in _PROVIDERS and (not pairs or any(_is_open(each) for each in call.args)) and not call.keywords:
        return [f"--provider {_PROVIDERS[name]}"]
    if name == "Nodes" and [key for key, _ in pairs] == ["desired"]:
        return [_argument("nodes", pairs[0][1])]
    if name in _TABLES or name in _PROVIDERS:
        keys = [(".".join(filter(None, (path, key))), value) for key, value in pairs]
        return [_argument(*each) for each in keys] or [_argument(path, ast.Constant(...)) if path else "--set"]
    return [_argument(path, call if path != "plugins" else ast.List([call]))]


_SHORT = {
    "nodes": "--nodes",
    "name": "--name",
    "accelerator": "--accelerator",
    "provider": "--provider",
    "provider.hosts": "--hosts",
}


def _argument(path: str, value: ast.expr) -> str:
    key = path.rpartition(".")[2]
    bare = _bare(key, value)
    if path in _SHORT and bare[:1] not in ("[", "{"):
        return f"{_SHORT[path]} {_shell(bare)}"
    if path == "provider.hosts" and isinstance(value, ast.List) and [*map(_is_open, value.elts)] == [True]:
        return "--hosts HOSTS"
    if path == "provider.hosts" and isinstance(value, ast.List) and all(map(_is_text, value.elts)):
        return f"--hosts {_shell(','.join(_bare('', each) for each in value.elts))}"
    option, name = ("--image", path[6:]) if path.startswith("image.") else ("--set", path)
    if isinstance(value, ast.List) and len(value.elts) == 1 and _is_text(value.elts[0]) and option == "--image":
        bare = _bare(key, value.elts[0])
    if isinstance(value, ast.Dict) and key == "env":
        variables = [f"env.{_key(at)}={_bare('', each)}" for at, each in _items(value)]
        return " ".join(f"--image {_shell(each)}" for each in variables)
    return f"{option} {_shell(f'{name}={bare}')}"


def _bare(key: str, value: ast.expr) -> str:
    """Return a value as a command-line argument: a string without quotes, unless TOML would then read another value."""
    if _is_open(value):
        return key.upper() or "..."
    text = _toml(value)
    if not text.startswith('"'):
        return text
    plain = str(json.loads(text))
    return text if _is_toml(plain) else plain


def _shell(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./~-]+", word) else "'" + word.replace("'", "'\"'\"'") + "'"


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return False
    return True


# --- values -----------------------------------------------------------------------------------------------------------


def _toml(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=bool(constant)):
            text = "true" if constant else "false"
        case ast.Constant(value=str(constant)):
            text = json.dumps(constant, ensure_ascii=False)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            text = f"[{', '.join(map(_toml, items))}]"
        case ast.Dict():
            text = _table({_key(key): each for key, each in _items(value)})
        case ast.Set():
            text = "{ ... }"
        case ast.Call():
            text = _called(value)
        case _:
            text = ast.unparse(value)
    return text


def _called(call: ast.Call) -> str:
    """Return a call in TOML: as a name, or as a table."""
    name = ast.unparse(call.func)
    if name.startswith("Secret"):
        variable = _toml(call.args[0]) if name == "Secret.env" and call.args else '"VARIABLE"'
        return f"{{ secret = {variable} }}"
    short = _PROVIDERS.get(name) or name.partition(".")[2]
    table = dict(_pairs(name, call))
    if short and not table:
        return json.dumps(short)
    return _table(({"name": ast.Constant(short)} if short else {}) | table) if table else "{ ... }"


def _table(entries: Mapping[str, ast.expr]) -> str:
    return "{ " + ", ".join(f"{key} = {_toml(value)}" for key, value in entries.items()) + " }"


def _items(value: ast.Dict) -> Sequence[tuple[ast.expr | None, ast.expr]]:
    return [*zip(value.keys, value.values, strict=True)]


def _key(key: ast.expr | None) -> str:
    text = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "KEY"
    return text if re.fullmatch(r"[\w-]+", text) else json.dumps(text)


def _is_open(value: ast.expr) -> bool:
    """Return whether the value is a placeholder that the reader has to fill in."""
    return isinstance(value, ast.Constant) and value.value is ...


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
