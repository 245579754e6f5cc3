"""The accelerate plugin: tasks run as if ``accelerate launch`` had started them, inside a process group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ...providers.shared.paths import expanded
from ..api.errors import SpecError
from ..api.plugin import Plugin
from .accelerate_variables import refuse, variables_of
from .client_versions import same_version
from .torch import Torch, set_accelerate_device

if TYPE_CHECKING:
    from ..api.instance import InstanceInfo


def accelerate(config: Mapping[str, Any] | str | Path | None = None, **settings: Any) -> Accelerate:
    """Run tasks as ``accelerate launch`` would.

    Includes the torch plugin; list that plugin, too, to change its options.

    The machines, processes and ports of the configuration are ignored: the pool decides them.

    Args:
        config: The output of ``accelerate config``, as a mapping or a file: JSON, or YAML if PyYAML is installed here.
        settings: Further settings, such as ``mixed_precision="bf16"``, ``distributed_type="FSDP"``,
            ``fsdp_config={...}``.

    Raises:
        SpecError: A key is unknown, the type of training is not supported, or the file cannot be read.
    """
    return Accelerate(tuple(sorted(variables_of({**_read(config), **settings}).items())))


@dataclass(frozen=True)
class Accelerate(Plugin):
    """The plugin that `accelerate` makes."""

    variables: tuple[tuple[str, str], ...] = ()

    name: ClassVar[str] = "accelerate"
    fresh_process: ClassVar[bool] = True  # accelerate caches the first ranks that it reads in a process

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return (same_version("accelerate"),)

    def brings(self) -> Sequence[Plugin]:
        variables = dict(self.variables)
        # As in accelerate itself: offloaded parameters, and full checkpoints, are exchanged in main memory.
        offloads = (
            variables.get("FSDP_OFFLOAD_PARAMS") == "true" or variables.get("FSDP_STATE_DICT_TYPE") == "FULL_STATE_DICT"
        )
        return (Torch(also_on_cpu=offloads),)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:  # noqa: ARG002
        return dict(self.variables)

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:  # noqa: ARG002
        set_accelerate_device()
        yield


def _read(config: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return _named(config)
    if not isinstance(config, str | Path):
        refuse(f"config takes a mapping or a file, not {type(config).__name__}.")
    path = expanded(config)
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:  # the file is not text, or the string cannot be a path
        raise SpecError(f"plugins.accelerate: {path} cannot be read: {getattr(error, 'strerror', error)}.") from error
    try:
        read = json.loads(text) if path.suffix == ".json" else _yaml(path, text)
    except ValueError as error:
        raise SpecError(f"plugins.accelerate: {path} cannot be understood: {error}.") from error
    if not isinstance(read, dict):
        refuse(f"{path} holds no mapping.")
    return _named(read)


def _named(read: Mapping[Any, Any]) -> dict[str, Any]:
    for name in read:
        if not isinstance(name, str):
            refuse(f"its keys are names, as in mixed_precision='bf16', not {name!r:.60}.")
    return dict(read)


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml  # pyright: ignore[reportMissingModuleSource]
    except ImportError:
        refuse(f"PyYAML is needed to read {path}: install it here, or give the same as a mapping.")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
