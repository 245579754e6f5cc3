"""transformers itself: Trainer finds the process group, and the hub its token."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from outrider import Secret, compute, instance_info, plugins

pytestmark = pytest.mark.anyio

CANARY = "hf_canary0123456789abcdef"


@compute
def train(steps: int) -> dict[str, Any]:
    """A tiny Llama with random weights learns to count."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    texts = [torch.arange(start, start + 8) % 32 for start in range(64)]
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        max_steps=steps,
        learning_rate=0.02,
        logging_steps=steps // 2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=[{"input_ids": text, "labels": text} for text in texts],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    total = sum(float(parameter.detach().double().sum()) for parameter in trainer.model.parameters())
    return {
        "mode": arguments.parallel_mode.name,
        "place": (arguments.process_index, arguments.world_size, arguments.local_process_index),
        "losses": losses,
        "weights": total,
        "rank": instance_info().rank,
    }


async def test_trainer_trains_one_model_on_all_ranks(place: Any) -> None:
    async with place.pool(2, plugins.huggingface()) as pool:
        ranks = await pool.broadcast(train(20))
        again = await pool.broadcast(train(4))  # no ranks of the last time are remembered
        alone = await pool.run(train(4))
    assert [rank["mode"] for rank in ranks + again] == ["DISTRIBUTED"] * 4
    assert [rank["place"] for rank in ranks] == [(0, 2, 0), (1, 2, 0)]
    assert ranks[0]["weights"] == pytest.approx(ranks[1]["weights"], abs=1e-6)
    first, last = ranks[0]["losses"]
    assert last < first
    assert alone["place"][:2] == (0, 1)


@compute
def logged_in() -> tuple[str | None, list[str]]:
    """The hub's own answer, and the files of its folder."""
    from pathlib import Path

    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HOME, HF_TOKEN_PATH

    print("a token:", os.environ["HF_TOKEN"][:3])
    home = Path(HF_HOME)
    holding = [str(path) for path in home.rglob("*") if path.is_file() and CANARY in path.read_text(errors="replace")]
    return get_token(), [*holding, *([HF_TOKEN_PATH] if Path(HF_TOKEN_PATH).exists() else [])]


async def test_the_hub_knows_the_token_and_no_file_does(place: Any, tmp_path: Any) -> None:
    plugin = plugins.huggingface(token=Secret(CANARY), home=str(tmp_path / "hf"), offline=True)
    assert not re.search(CANARY, repr(plugin))
    async with place.pool(1, plugin) as pool:
        token, files = await pool.run(logged_in())
    assert token == CANARY
    assert files == []
