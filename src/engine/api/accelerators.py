"""Accelerators (GPUs, TPUs): ``"A100-80GB:8"`` by name, ``accelerators.A100(count=8, memory="80GB")`` as an object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Any, Final

from ...lazy_dataclass import dataclass
from ...providers.shared.option_names import closest
from . import checks
from .errors import SpecError


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The devices of a node: their type and their number.

    Args:
        type: The name of the type; any name is accepted.
        count: The number of devices.
        memory_gb: The least memory of each device in GB. 0: any.
    """

    type: str
    count: int = 1
    memory_gb: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type.strip():
            raise SpecError(f"Accelerator(type=...) takes a name such as 'A100', not {checks.shown(self.type)}.")
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise SpecError(f"{self.type}: count must be a whole number, at least 1, not {checks.shown(self.count)}.")
        memory_gb = None if isinstance(self.memory_gb, bool) else self.memory_gb
        if not isinstance(memory_gb, int | float) or not 0 <= memory_gb < inf:
            raise SpecError(f"{self.type}: memory_gb must be a number, 0 or more, not {checks.shown(self.memory_gb)}.")

    @classmethod
    def of(cls, accelerator: str | Accelerator) -> Accelerator:
        """Return the `Accelerator` of an ``accelerator=`` option: ``"A100"``, ``"A100-80GB:8"``, or an `Accelerator`.

        Raises:
            SpecError: The name is unknown. For other names, call `Accelerator(type)`, which takes any name.
        """
        if isinstance(accelerator, Accelerator):
            return accelerator
        if not isinstance(accelerator, str):
            raise SpecError(f"accelerator takes 'A100', 'A100:8' or 'A100-80GB:8', not {checks.shown(accelerator)}.")
        name, colon, count = accelerator.strip().partition(":")
        if colon and not re.fullmatch(r"\d{1,9}", count):
            raise SpecError(f"accelerator={checks.shown(accelerator)}: {_of_count(name, count)}")
        model, memory = _with_memory(name)
        return model(count=int(count) if colon else 1, memory=memory)

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Accelerator:
        """Return the `Accelerator` that a TOML table describes: ``{name="A100", count=8, memory="80GB"}``.

        For a type that Outrider does not know, the table has other keys: ``{type="X", count=8, memory_gb=20}``.

        Raises:
            SpecError: A key or a value is not valid.
        """
        known = ("type", "count", "memory_gb") if "type" in table else ("name", "count", "memory")
        checks.check_known("accelerator", table, known)
        if "type" in table:
            return cls(**table)
        name = table.get("name")
        if not isinstance(name, str) or ":" in name:
            raise SpecError(
                'accelerator takes a table such as { name = "A100", count = 8, memory = "80GB" }, with the name of a '
                f"type, not {checks.shown(name)}."
            )
        model, memory = _with_memory(name)
        return model(count=table.get("count", 1), memory=table.get("memory", memory))


@dataclass(frozen=True, slots=True)
class Model:
    """A type of accelerator; calling it makes an `Accelerator`.

    ``memories_gb`` has the sizes of memory, in GB, with which the type is sold.
    """

    type: str
    memories_gb: tuple[float, ...]

    def __call__(self, *, count: int = 1, memory: str | float | None = None) -> Accelerator:
        """Return ``count`` devices of this type, each with at least ``memory``: text such as "80GB", or a number of GB.

        Raises:
            SpecError: No device of this type has that much memory.
        """
        if memory is None:
            return Accelerator(self.type, count, min(self.memories_gb))
        wanted = _gigabytes(self.type, memory)
        if wanted > max(self.memories_gb):
            sold = " or ".join(f"{size:g} GB" for size in self.memories_gb)
            raise SpecError(f"{self.type} comes with {sold}, not with {wanted:g} GB.")
        return Accelerator(self.type, count, wanted)


# The memory of each device in GB is from the makers' data sheets.
# NVIDIA's devices for data centers
A2: Final = Model("A2", (16,))
A10: Final = Model("A10", (24,))
A10G: Final = Model("A10G", (24,))
A16: Final = Model("A16", (16,))
A30: Final = Model("A30", (24,))
A40: Final = Model("A40", (48,))
A100: Final = Model("A100", (40, 80))
B200: Final = Model("B200", (180,))
B300: Final = Model("B300", (268,))
GB200: Final = Model("GB200", (186,))
GB300: Final = Model("GB300", (278,))
GH200: Final = Model("GH200", (96, 141))
H100: Final = Model("H100", (80, 94))
H200: Final = Model("H200", (141,))
K80: Final = Model("K80", (12,))
L4: Final = Model("L4", (24,))
L40: Final = Model("L40", (48,))
L40S: Final = Model("L40S", (48,))
M60: Final = Model("M60", (8,))
P4: Final = Model("P4", (8,))
P40: Final = Model("P40", (24,))
P100: Final = Model("P100", (12, 16))
T4: Final = Model("T4", (16,))
T4G: Final = Model("T4G", (16,))
V100: Final = Model("V100", (16, 32))
# NVIDIA's devices for workstations
RTX2080Ti: Final = Model("RTX2080Ti", (11,))
RTX3080: Final = Model("RTX3080", (10, 12))
RTX3090: Final = Model("RTX3090", (24,))
RTX4080: Final = Model("RTX4080", (16,))
RTX4090: Final = Model("RTX4090", (24,))
RTX5080: Final = Model("RTX5080", (16,))
RTX5090: Final = Model("RTX5090", (32,))
RTX4000Ada: Final = Model("RTX4000Ada", (20,))
RTX5000Ada: Final = Model("RTX5000Ada", (32,))
RTX6000Ada: Final = Model("RTX6000Ada", (48,))
RTXA4000: Final = Model("RTXA4000", (16,))
RTXA5000: Final = Model("RTXA5000", (24,))
RTXA6000: Final = Model("RTXA6000", (48,))
RTXPRO4500: Final = Model("RTXPRO4500", (32,))
RTXPRO6000: Final = Model("RTXPRO6000", (96,))
# AMD's devices
MI210: Final = Model("MI210", (64,))
MI250: Final = Model("MI250", (128,))
MI250X: Final = Model("MI250X", (128,))
MI300A: Final = Model("MI300A", (128,))
MI300X: Final = Model("MI300X", (192,))
MI325X: Final = Model("MI325X", (256,))
MI355X: Final = Model("MI355X", (288,))
# devices of AWS and Intel
Gaudi: Final = Model("Gaudi", (32,))
Gaudi2: Final = Model("Gaudi2", (96,))
Gaudi3: Final = Model("Gaudi3", (128,))
Inferentia: Final = Model("Inferentia", (8,))
Inferentia2: Final = Model("Inferentia2", (32,))
Trainium: Final = Model("Trainium", (32,))
Trainium2: Final = Model("Trainium2", (96,))
# Google's TPUs; the memory is that of one chip
TPUv2: Final = Model("TPUv2", (16,))
TPUv3: Final = Model("TPUv3", (32,))
TPUv4: Final = Model("TPUv4", (32,))
TPUv5e: Final = Model("TPUv5e", (16,))
TPUv5p: Final = Model("TPUv5p", (95,))
TPUv6e: Final = Model("TPUv6e", (32,))


def _with_memory(name: str) -> tuple[Model, str | None]:
    """Split a name such as ``A100-80GB`` into its type and its memory; the memory is None if the name has none.

    Raises:
        SpecError: No type has this name.
    """
    if model := _BY_NAME.get(_plain(name)):
        return model, None
    sized = re.fullmatch(r"(.+?)[\s_-]*(\d+)\s*GB", name.strip(), re.IGNORECASE)
    if sized is None:
        raise _unknown(name)
    model = _BY_NAME.get(_plain(sized[1]))
    if model is None:
        raise _unknown(sized[1])
    return model, f"{sized[2]}GB"


def _of_count(name: str, count: str) -> str:
    """Return the error message for an invalid ``accelerator="name:count"``, whose count is no number."""
    number, _, memory = count.partition(":")
    if number.isdigit() and re.fullmatch(r"\d+\s*GB", memory.strip(), re.IGNORECASE):
        return f"the memory belongs to the name: write {f'{name}-{memory}:{number}'!r}."
    if re.fullmatch(r"\d+\s*GB", count.strip(), re.IGNORECASE):
        return f"the memory belongs to the name: write {f'{name}-{count}'!r}."
    return "after the colon goes how many per node, as in 'A100:8'."


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).upper()


_BY_NAME: dict[str, Model] = {_plain(value.type): value for value in [*globals().values()] if isinstance(value, Model)}


def _gigabytes(type_: str, memory: object) -> float:
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:gb?|gib)?\s*", memory, re.IGNORECASE)
        if match is None:
            raise SpecError(f"{type_}: memory takes a size such as '80GB', not {checks.shown(memory)}.")
        return float(match[1])
    return checks.amount(f"{type_}: memory", memory, "GB")


def _known() -> str:
    return ", ".join(sorted(model.type for model in _BY_NAME.values()))


def _unknown(name: str) -> SpecError:
    close = closest(_plain(name), _BY_NAME)
    hint = f"did you mean {_BY_NAME[close].type!r}?" if close else f"known are {_known()}."
    text = checks.shown(name)
    return SpecError(f"No accelerator is called {text}: {hint} For another, write Accelerator({text}).")


def __getattr__(name: str) -> Model:
    if name.startswith("_"):
        raise AttributeError(name)
    close = closest(_plain(name), _BY_NAME)
    hint = f"did you mean {_BY_NAME[close].type}?" if close else f"there are {_known()}."
    raise AttributeError(f"outrider.accelerators has no {name}: {hint}")
