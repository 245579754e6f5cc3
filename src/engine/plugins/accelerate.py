"""The accelerate plugin: tasks run as if ``accelerate launch`` had started them, inside a process group.

`variables_of` returns the environment variables that ``accelerate launch`` sets for a configuration; it does no I/O,
and does not import accelerate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ...lazy_dataclass import dataclass
from ...providers.shared.paths import expanded
from ..api.errors import SpecError
from ..api.plugin import Plugin
from .client_versions import same_version
from .torch import Torch, set_accelerate_device

if TYPE_CHECKING:
    from ..api.instance import InstanceInfo


TYPES = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED")

# Keys in the files of `accelerate config` that are ignored: the pool decides them, or Python code does.
PLACEMENT = frozenset({
    "command_file", "commands", "compute_environment", "gpu_ids", "machine_rank", "main_process_ip",
    "main_process_port", "main_training_function", "mpirun_config", "num_machines", "num_processes", "rdzv_backend",
    "same_network", "tpu_env", "tpu_name", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_zone",
})  # fmt: skip
SECTIONS = ("deepspeed_config", "dynamo_config", "fsdp_config", "parallelism_config")
SETTINGS = ("debug", "distributed_type", "downcast_bf16", "enable_cpu_affinity", "mixed_precision", "use_cpu")
ELSEWHERE = ("fp8_config", "ipex_config", "megatron_lm_config")

# Keys of the section `fsdp_config` with the launcher's defaults (accelerate 1.15).
# None: no default; the variable is set only if the configuration has a value.
FSDP: dict[str, str | None] = {
    "fsdp_version": "1",
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": "100000000",
    "fsdp_auto_wrap_policy": None,
    "fsdp_transformer_layer_cls_to_wrap": None,
    "fsdp_backward_prefetch": None,
    "fsdp_state_dict_type": None,
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
    "fsdp_activation_checkpointing_offload": "false",
    "fsdp_ignored_modules": None,
}
DEEPSPEED = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    "offload_optimizer_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",  # the launcher sets no default
    "offload_param_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",  # the launcher sets no default
}
DEEPSPEED_PLACEMENT = frozenset({
    "deepspeed_exclusion_filter", "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_multinode_launcher",
})  # fmt: skip
DYNAMO = {
    "dynamo_backend": "no",
    "dynamo_mode": "default",
    "dynamo_use_fullgraph": "False",
    "dynamo_use_dynamic": "False",
    "dynamo_use_regional_compilation": "False",
}
PARALLELISM: dict[str, str | None] = {
    "parallelism_config_dp_replicate_size": "1",
    "parallelism_config_dp_shard_size": "1",
    "parallelism_config_tp_size": "1",
    "parallelism_config_cp_size": "1",
    "parallelism_config_cp_backend": "torch",
    "parallelism_config_sp_size": "1",
    "parallelism_config_sp_backend": "deepspeed",
    "parallelism_config_cp_comm_strategy": None,
    "parallelism_config_sp_seq_length": None,
    "parallelism_config_sp_seq_length_is_variable": None,
    "parallelism_config_sp_attn_implementation": None,
}
SWITCHES = {
    "use_cpu": ("ACCELERATE_USE_CPU", "True"),
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "enable_cpu_affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
}
_RENAMED = {"FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
_AS_WRITTEN = {"FSDP_SHARDING_STRATEGY", "FSDP_AUTO_WRAP_POLICY", "FSDP_TRANSFORMER_CLS_TO_WRAP",
               "FSDP_BACKWARD_PREFETCH", "FSDP_STATE_DICT_TYPE", "FSDP_IGNORED_MODULES"}  # fmt: skip


def variables_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables for a configuration of ``accelerate config``, except those that the pool decides.

    Raises:
        SpecError: a key is unknown, or the type of training is not supported.
    """
    for key in config.keys() - PLACEMENT - {*SECTIONS, *SETTINGS}:
        _unknown(key, "", (*SETTINGS, *SECTIONS))
    variables = _general(config)
    kind = config.get("distributed_type", "NO")
    kind = "NO" if kind is False else kind  # YAML reads an unquoted NO as False
    if kind not in TYPES:
        refuse(f"distributed_type takes {', '.join(TYPES)}, not {kind!r}.")
    if kind == "FSDP":
        variables |= _fsdp(_section(config, "fsdp_config"))
    if kind == "DEEPSPEED":
        variables |= _deepspeed(_section(config, "deepspeed_config"), mixed="mixed_precision" in config)
    else:
        variables |= _dynamo(_section(config, "dynamo_config"))
    if config.get("parallelism_config"):
        variables |= _parallelism(_section(config, "parallelism_config"))
    return variables


def refuse(message: str) -> NoReturn:
    raise SpecError(f"plugins.accelerate: {message}")


def _general(config: Mapping[str, Any]) -> dict[str, str]:
    variables = {"ACCELERATE_MIXED_PRECISION": _text(config.get("mixed_precision") or "no").lower()}
    if variables["ACCELERATE_MIXED_PRECISION"] == "false":  # YAML reads an unquoted no as False
        variables["ACCELERATE_MIXED_PRECISION"] = "no"
    return variables | {name: value for key, (name, value) in SWITCHES.items() if config.get(key)}


def _dynamo(section: Mapping[str, Any]) -> dict[str, str]:
    values = DYNAMO | _values_of(section, "dynamo_", DYNAMO, "dynamo_config")
    values["dynamo_backend"] = values["dynamo_backend"].upper()
    return {f"ACCELERATE_{key.upper()}": value for key, value in values.items()}


def _fsdp(section: Mapping[str, Any]) -> dict[str, str]:
    values = {key.upper(): value for key, value in (FSDP | _values_of(section, "fsdp_", FSDP, "fsdp_config")).items()}
    variables = {
        _RENAMED.get(name, name): value if _RENAMED.get(name, name) in _AS_WRITTEN else value.lower()
        for name, value in values.items()
        if value is not None
    }
    if variables["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true" and variables["FSDP_SYNC_MODULE_STATES"] != "true":
        refuse("fsdp_config: fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states.")
    return {"ACCELERATE_USE_FSDP": "true"} | variables


def _deepspeed(section: Mapping[str, Any], *, mixed: bool) -> dict[str, str]:
    values = _values_of(section, "", (*DEEPSPEED, *DEEPSPEED_PLACEMENT), "deepspeed_config")
    fields = [*section, *(["mixed_precision"] if mixed else [])]
    as_written = {key for key in DEEPSPEED if key.endswith(("_file", "_names", "_path"))}
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower(),
        **{DEEPSPEED[key]: value if key in as_written else value.lower() for key, value in values.items()
           if key in DEEPSPEED},
    }  # fmt: skip


def _parallelism(section: Mapping[str, Any]) -> dict[str, str]:
    values = PARALLELISM | _values_of(section, "parallelism_config_", PARALLELISM, "parallelism_config")
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"} | {
        key.upper(): value for key, value in values.items() if value is not None
    }


def _values_of(section: Mapping[str, Any], prefix: str, known: Iterable[str], name: str) -> dict[str, str]:
    """Return {key with ``prefix``: value as text} for a section of an accelerate configuration."""
    known = tuple(known)
    values: dict[str, str] = {}
    for key, value in section.items():
        full = key if key.startswith(prefix) else prefix + key
        if full not in known:
            _unknown(key, f"{name}: ", known)
        if value is not None:
            values[full] = _text(value)
    return values


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name) or {}
    if not isinstance(section, Mapping):
        refuse(f"{name} takes a mapping, not {section!r}.")
    return section


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _unknown(key: str, where: str, known: Iterable[str]) -> NoReturn:
    if key in ELSEWHERE:
        refuse(f"{key} is not set up by this plugin: put its variables into Image(env=...).")
    if not where:
        keys_of: tuple[Iterable[str], ...] = (DEEPSPEED, DYNAMO, FSDP, PARALLELISM)
        for section, keys in zip(SECTIONS, map(set, keys_of), strict=True):
            if key == section.removesuffix("_config"):
                refuse(f"there is no {key!r}. Did you mean {section!r}?")
            if key in keys:
                refuse(f"there is no {key!r}: it is one of {section}, as in {section}={{{key!r}: ...}}.")
    close = get_close_matches(key, tuple(known), n=1)
    refuse(f"{where}there is no {key!r}." + (f" Did you mean {close[0]!r}?" if close else ""))


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
    fresh_process: ClassVar[bool] = True  # accelerate reads its rank only once per process

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
