"""The accelerate plugin: a configuration as variables. That they are the launcher's own: tests/frameworks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import InstanceInfo, SpecError, plugins
from outrider.engine.api.plugin import merged
from outrider.engine.plugins.torch import Torch

Place = Callable[..., InstanceInfo]

WRITTEN = {  # as `accelerate config` writes it
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "FSDP",
    "downcast_bf16": "no",
    "enable_cpu_affinity": False,
    "fsdp_config": {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer", "Head"],
        "fsdp_version": 2,
    },
    "machine_rank": 0,
    "main_process_ip": "192.0.2.1",
    "main_process_port": 1234,
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 7,
    "num_processes": 14,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}


def env(place: Place, *args: Any, **settings: Any) -> dict[str, str]:
    plugin = plugins.accelerate(*args, **settings)
    return dict(plugin.env(place(0)))


def test_without_a_configuration_it_is_what_the_launcher_does_by_default(place: Place) -> None:
    variables = env(place)
    assert variables["ACCELERATE_MIXED_PRECISION"] == "no"
    assert variables["ACCELERATE_DYNAMO_BACKEND"] == "NO"
    assert not any("FSDP" in name or "DEEPSPEED" in name for name in variables)


def test_fsdp(place: Place) -> None:
    variables = env(place, WRITTEN)
    assert variables["ACCELERATE_USE_FSDP"] == "true"
    assert variables["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert variables["FSDP_VERSION"] == "2"
    assert variables["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    assert variables["FSDP_TRANSFORMER_CLS_TO_WRAP"] == "LlamaDecoderLayer,Head"
    assert variables["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
    assert variables["FSDP_OFFLOAD_PARAMS"] == "false"  # the launcher's default
    assert not any("1234" in value or "192.0.2.1" in value for value in variables.values())


def test_deepspeed(place: Place) -> None:
    section = {
        "zero_stage": 3,
        "offload_optimizer_device": "CPU",
        "gradient_accumulation_steps": 4,
        "zero3_init_flag": True,
        "deepspeed_config_file": "Config.json",
        "deepspeed_multinode_launcher": "standard",
    }
    variables = env(place, distributed_type="DEEPSPEED", mixed_precision="fp16", deepspeed_config=section)
    assert variables["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert variables["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] == "cpu"
    assert variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"
    assert variables["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "true"
    assert variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "Config.json"
    assert variables["ACCELERATE_CONFIG_DS_FIELDS"] == ",".join([*section, "mixed_precision"])


def test_other_settings(place: Place) -> None:
    variables = env(
        place, {"use_cpu": True, "debug": True, "enable_cpu_affinity": True}, dynamo_config={"backend": "inductor"}
    )
    assert variables["ACCELERATE_USE_CPU"] == "True"
    assert variables["ACCELERATE_DEBUG_MODE"] == "true"
    assert variables["ACCELERATE_CPU_AFFINITY"] == "1"
    assert variables["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"
    parallel = env(place, parallelism_config={"tp_size": 2})
    assert parallel["ACCELERATE_USE_PARALLELISM_CONFIG"] == "true"
    assert parallel["PARALLELISM_CONFIG_TP_SIZE"] == "2"


def test_a_configuration_may_be_a_file_and_is_added_to(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(WRITTEN))
    assert env(place, path) == env(place, WRITTEN) == env(place, str(path))
    assert env(place, path, mixed_precision="no")["ACCELERATE_MIXED_PRECISION"] == "no"


def test_torch_comes_along_with_main_memory_where_that_is_exchanged() -> None:
    plain = plugins.accelerate()
    assert merged([plain], []) == (Torch(), plain)
    for section in ({"fsdp_offload_params": True}, {"state_dict_type": "FULL_STATE_DICT"}):
        offloading = plugins.accelerate(distributed_type="FSDP", fsdp_config=section)
        assert merged([offloading], []) == (Torch(also_on_cpu=True), offloading)
    assert plain.fresh_process


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mixed_precison": "bf16"}, r"no 'mixed_precison'\. Did you mean 'mixed_precision'\?"),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_ofload_params": True}},
            r"fsdp_config: .*fsdp_offload_params",
        ),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero": 3}}, "deepspeed_config: there is no 'zero'"),
        ({"config": {"fsdp": {}}}, "no 'fsdp'. Did you mean 'fsdp_config'"),
        ({"zero_stage": 3}, r"no 'zero_stage': it is one of deepspeed_config, as in deepspeed_config=\{'zero_stage'"),
        ({"distributed_type": "MEGATRON_LM"}, "distributed_type takes NO, "),
        ({"megatron_lm_config": {}}, r"Image\(env=\.\.\.\)"),
        ({"distributed_type": "FSDP", "fsdp_config": 3}, "takes a mapping"),
        ({"distributed_type": "FSDP", "fsdp_config": {"sync_module_states": False}}, "needs fsdp_sync_module_states"),
        ({"config": 3}, "a mapping or a file, not int"),
        ({"config": "/nonexistent/config.json"}, "cannot be read: No such file"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=rf"plugins\.accelerate: .*{says}"):
        plugins.accelerate(**options)


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, says in (("{", "cannot be understood"), ("[]", "holds no mapping")):
        path.write_text(text)
        with pytest.raises(SpecError, match=says):
            plugins.accelerate(path)
