"""Messages name options in the language of their reader: Python's, TOML's, or that of `outrider run`."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import outrider
from outrider.engine.api.accelerators import Accelerator
from outrider.engine.api.language import PYTHON, TOML, Language, in_language, in_toml, options_are_in_file, speaking
from outrider.engine.api.language import worded as worded_here
from outrider.engine.api.option_words import _CALLS, FIRST

OPTIONS, PLACES = Language("options"), Language("places")


@pytest.mark.parametrize(
    ("python", "options", "toml"),
    [
        (
            "give AWS(region=...), or set AWS_REGION",
            "give --set provider.region=REGION, or set AWS_REGION",
            'give `provider = { name = "aws", region = ... }`, or set AWS_REGION',
        ),
        (
            "give GCP('us-central1')",
            "give --set provider.region=us-central1",
            'give `provider = { name = "gcp", region = "us-central1" }`',
        ),
        ('Pool(checkpoints="s3://b/x")', "--set checkpoints=s3://b/x", '`checkpoints = "s3://b/x"`'),
        ("by Pool(nodes=...).", "by --nodes NODES.", "by `nodes = ...`."),
        (
            "Ask for less by Pool(vcpus=, memory_gb=).",
            "Ask for less by --set vcpus=VCPUS --set memory_gb=MEMORY_GB.",
            "Ask for less by `vcpus = ...` and `memory_gb = ...`.",
        ),
        (
            "with SSH(config=True).",
            "with --set provider.config=true.",
            'with `provider = { name = "ssh", config = true }`.',
        ),
        ("SSH(hosts=...) is empty", "--hosts is empty", "provider.hosts is empty"),
        ("write SSH(hosts=['a', 'b'])", "write --hosts a,b", 'write `provider = { name = "ssh", hosts = ["a", "b"] }`'),
        ("Image(pip=...): 'x' is no", "--image pip: 'x' is no", "image.pip: 'x' is no"),
        ("Image(pip=['numpy'])", "--image pip=numpy", '`image = { pip = ["numpy"] }`'),
        ("Image(env={'A': 'b c'})", "--image 'env.A=b c'", '`image = { env = { A = "b c" } }`'),
        ("this one provider=Local(), not", "this one --provider local, not", 'this one `provider = "local"`, not'),
        (
            "use provider=Containers('python:3', hosts=[...])",
            "use --provider containers --set provider.image=python:3 --hosts HOSTS",
            'use `provider = { name = "containers", image = "python:3", hosts = [...] }`',
        ),
        (
            "as in Host('gpu1', port=22)",
            "as in --set 'provider.hosts=[{ name = \"gpu1\", port = 22 }]'",
            'as in `provider = { name = "ssh", hosts = [{ name = "gpu1", port = 22 }] }`',
        ),
        (
            "Slurm(options={'dependency': 'afterok:4711'})",
            "--set 'provider.options={ dependency = \"afterok:4711\" }'",
            '`provider = { name = "slurm", options = { dependency = "afterok:4711" } }`',
        ),
        (
            "Volume(credentials={'K': Secret.env('K'), ...})",
            "--set 'volumes=[{ credentials = { K = { secret = \"K\" } } }]'",
            '`volumes = [{ credentials = { K = { secret = "K" } } }]`',
        ),
        (
            "Pool(Spec(...), Spec(...)) asks",
            "--set 'specs=[{ ... }, { ... }]' asks",
            "`specs = [{ ... }, { ... }]` asks",
        ),
        (
            "Chaos(mtbf=15, seed=7)",
            "--set chaos.mtbf=15 --set chaos.seed=7",
            "`chaos = { mtbf = 15, seed = 7 }`",
        ),
        ("Accelerator('X')", "--set 'accelerator={ type = \"X\" }'", '`accelerator = { type = "X" }`'),
        (
            "accelerators.A100(count=8, memory='80GB')",
            '--set \'accelerator={ name = "A100", count = 8, memory = "80GB" }\'',
            '`accelerator = { name = "A100", count = 8, memory = "80GB" }`',
        ),
        ("by Pool(plugins=[plugins.torch(...)])", "by --set 'plugins=[\"torch\"]'", 'by `plugins = ["torch"]`'),
        ("with `with Pool(...) as pool`", "with `with Pool(...) as pool`", "with `with Pool(...) as pool`"),
        ("Pool(oops", "Pool(oops", "Pool(oops"),
        ("Image(=) and AWS(1+)", "Image(=) and AWS(1+)", "Image(=) and AWS(1+)"),
        ("takes True or False, not 3", "takes true or false, not 3", "takes true or false, not 3"),
    ],
)
def test_options_are_named_in_three_languages(python: str, options: str, toml: str) -> None:
    assert in_language(python, OPTIONS) == options
    assert in_language(python, TOML) == toml
    for text in re.findall(r"`([^`]*)`", toml):
        if "..." not in text:
            tomllib.loads(text)


def test_a_text_that_toml_would_read_as_a_number_keeps_its_quotes() -> None:
    assert in_language("Slurm(account='12')", OPTIONS) == "--set 'provider.account=\"12\"'"


def test_ps_names_a_place_and_what_no_place_has_in_toml() -> None:
    assert in_language("give AWS(region=...)", PLACES) == "give --place aws:region=REGION"
    assert in_language("Pool(lease=60)", PLACES) == "`lease = 60`"


def test_what_a_file_has_is_named_in_toml_on_the_command_line_too() -> None:
    text = "AWS(region=...), or Pool(lease=60)"
    with speaking(OPTIONS):
        options_are_in_file(frozenset({"provider"}))
        assert worded_here(text) == '`provider = { name = "aws", region = ... }`, or --set lease=60'
        assert in_toml(text) == text, "rewritten where the command prints it"
    assert worded_here(text) == text
    options_are_in_file(frozenset({"provider"}))
    assert worded_here(text) == in_language(text, PYTHON) == text
    assert "provider" in in_toml(text)


@pytest.mark.parametrize(("kind", "first"), FIRST.items())
def test_the_option_without_a_name_is_the_first_of_its_class(kind: str, first: str) -> None:
    declared = getattr(outrider, kind, Accelerator)
    assert next(iter(inspect.signature(declared).parameters)) == first


# --- every message of the source --------------------------------------------------------------------------------------

SOURCE = Path(outrider.__file__).parent
FOR_PYTHON = (  # messages about what only programs do
    "engine/api/option_words.py",
    "engine/api/misuse.py",
    "engine/plugins/joblib_backend.py",
    "testing/",
)


@cache
def _messages() -> list[tuple[str, str]]:
    return [*_found_messages()]


def _found_messages() -> Iterator[tuple[str, str]]:
    """Yield each text of the source that names an option as Python does, with an example in place of each value."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        source = path.read_text()
        if name.startswith(FOR_PYTHON) or "/testing/" in name or not _CALLS.search(source):
            continue
        tree = ast.parse(source)
        parts = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
        for each in ast.walk(tree):
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in parts:
                text = each.value
            elif isinstance(each, ast.JoinedStr):
                text = "".join(map(_example, each.values))
            else:
                continue
            if _CALLS.search(text) and "\n" not in text:
                yield f"{name}:{each.lineno}", text


def _example(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return "'x'" if part.conversion == ord("r") else "x"


@pytest.mark.parametrize("language", [OPTIONS, TOML])
def test_no_message_of_the_source_names_an_option_as_python_does(language: Language) -> None:
    left = [each for each in _messages() if _CALLS.search(in_language(each[1], language))]
    assert [each for each in left if "with Pool(" not in each[1]] == []
    assert len(_messages()) > 150
