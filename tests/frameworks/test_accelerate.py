"""accelerate itself: its Accelerator finds the ranks, and its launcher sets the same variables as the plugin."""

from __future__ import annotations

import os
from typing import Any

import pytest

from outrider import compute, plugins

pytestmark = pytest.mark.anyio


@compute
def train(steps: int) -> dict[str, Any]:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(0)
    accelerator: Any = Accelerator()
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 3 * x + 1), batch_size=8, shuffle=True)
    model: Any = torch.nn.Linear(1, 1)
    model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.2), data)
    seen = 0
    for _ in range(steps):
        for inputs, targets in data:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += len(inputs)
    state = accelerator.get_state_dict(model)
    return {
        "type": accelerator.distributed_type.name,
        "wrapped": type(model).__name__,
        "place": (accelerator.process_index, accelerator.num_processes, accelerator.local_process_index),
        "weights": [float(value) for tensor in state.values() for value in tensor.flatten()],
        "seen": seen,
    }


async def test_accelerator_trains_one_model_on_all_ranks(place: Any) -> None:
    async with place.pool(2, plugins.accelerate()) as pool:
        ranks = await pool.broadcast(train(20))
        alone = await pool.run(train(1))
    assert [rank["place"] for rank in ranks] == [(0, 2, 0), (1, 2, 0)]
    assert [(rank["type"], rank["wrapped"]) for rank in ranks] == [("MULTI_CPU", "DistributedDataParallel")] * 2
    assert [rank["seen"] for rank in ranks] == [32 * 20] * 2  # half of it each
    assert ranks[0]["weights"] == ranks[1]["weights"] == pytest.approx([3, 1], abs=0.05)
    assert alone["place"] == (0, 1, 0)


@compute
def read_back() -> dict[str, Any]:
    """What accelerate makes of the variables, in a rank."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    fsdp: Any = FullyShardedDataParallelPlugin()
    return {
        "version": fsdp.fsdp_version,
        "wrap": fsdp.auto_wrap_policy.__name__,
        "classes": fsdp.transformer_cls_names_to_wrap,
        "offload": type(fsdp.cpu_offload).__name__,
        "state": fsdp.state_dict_type.name,
        "precision": os.environ["ACCELERATE_MIXED_PRECISION"],
    }


FSDP = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "fsdp_offload_params": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    },
}
DEEPSPEED = {
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "bf16",
    "deepspeed_config": {
        "zero_stage": 3,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "cpu",
        "offload_param_device": "none",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
    },
}


async def test_accelerate_reads_an_fsdp_configuration_back(place: Any) -> None:
    async with place.pool(1, plugins.accelerate(FSDP)) as pool:
        read = await pool.run(read_back())
    assert read == {
        "version": 2,
        "wrap": "transformer_auto_wrap_policy",
        "classes": ["LlamaDecoderLayer"],
        "offload": "CPUOffloadPolicy",
        "state": "SHARDED_STATE_DICT",
        "precision": "bf16",
    }


@pytest.mark.parametrize(
    "config",
    [
        {"distributed_type": "MULTI_GPU"},
        {"distributed_type": "MULTI_GPU", "mixed_precision": "fp16", "debug": True},
        {"distributed_type": "MULTI_GPU", "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_dynamic": True}},
        {"distributed_type": "FSDP"},
        FSDP,
        {**FSDP, "parallelism_config": {"parallelism_config_tp_size": 2, "parallelism_config_dp_shard_size": 2}},
        {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP",
         "fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_forward_prefetch": True, "fsdp_min_num_params": 1000}},
        {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "/data/Config.json"}},
        DEEPSPEED,
    ],
    ids=["plain", "switches", "dynamo", "fsdp", "fsdp 2", "parallel", "fsdp 1", "deepspeed's own", "deepspeed"],
)  # fmt: skip
def test_variables_are_those_of_accelerates_own_launcher(
    config: dict[str, Any], tmp_path: Any, monkeypatch: Any
) -> None:
    assert dict(plugins.accelerate(config).variables) == launched(config, tmp_path, monkeypatch)


def launched(config: dict[str, Any], tmp_path: Any, monkeypatch: Any) -> dict[str, str]:
    """What ``accelerate launch`` adds to the environment of the processes that it starts."""
    import yaml
    from accelerate.commands import launch
    from accelerate.utils import launch as prepare

    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_")):
            monkeypatch.delenv(name)
    file = tmp_path / "config.yaml"
    whole = {"compute_environment": "LOCAL_MACHINE", "use_cpu": False, "debug": False,
             "num_processes": 2, "num_machines": 1, "main_process_port": 0} | config  # fmt: skip
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    parser: Any = launch.launch_command_parser()
    arguments, defaults, mixed = launch._validate_launch_command(
        parser.parse_args(["--config_file", str(file), "program.py"])
    )
    if config["distributed_type"] == "DEEPSPEED":
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if mixed else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = prepare.prepare_deepspeed_cmd_env(arguments)
    else:
        environment = prepare.prepare_multi_gpu_env(arguments)
    ours = ("ACCELERATE_", "FSDP_", "PARALLELISM_")
    return {name: value for name, value in environment.items() if name.startswith(ours)}
