"""Keras, Hugging Face's Trainer and Lightning log into the record of the run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Plugin, Pool, compute, instance_info, integrations, plugins, shard
from outrider.engine.record.runs.metrics import Point, Series, newest, read_metrics
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.runs.reader import read_json

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")


def needs(framework: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(framework) is None, reason=f"{framework} is not installed")


def pool(name: str, *given: Plugin) -> Pool:
    return Pool(provider=Local(), nodes=2, plugins=given, console="silent", run=name)


def record(name: str) -> Path:
    (found,) = runs_folder().glob(f"*-{name}-*")
    return found


def curves(name: str) -> dict[tuple[str, int | None], list[Point]]:
    found: dict[Series, list[Point]] = newest(read_metrics(record(name)))
    return {(series.name, series.rank): points for series, points in found.items()}


@compute
def fit(every: int | None) -> list[float]:
    import keras
    import numpy as np

    x = shard(np.linspace(-1, 1, 64, dtype=np.float32).reshape(-1, 1))
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.3), loss="mse")
    callback = integrations.keras_callback(every=every, ranks="all" if every is None else "head")
    fitted = model.fit(
        x, 3 * x, batch_size=8, epochs=5, initial_epoch=2, verbose=0, validation_data=(x, 3 * x), callbacks=[callback]
    )
    return [*fitted.history["loss"], *fitted.history["val_loss"]]


@needs("keras")
async def test_what_keras_fits_is_a_curve_by_epoch_or_by_batch() -> None:
    async with pool("keras-adapter", plugins.keras("jax")) as opened:
        by_epoch = await opened.broadcast(fit(None))
    found = curves("keras-adapter")
    for rank, history in enumerate(by_epoch):
        assert [point.step for point in found["loss", rank]] == [2, 3, 4]
        assert [point.value for point in found["loss", rank]] == pytest.approx(history[:3])
        assert [point.value for point in found["val_loss", rank]] == pytest.approx(history[3:])
    async with pool("keras-batches", plugins.keras("jax")) as opened:
        await opened.broadcast(fit(3))
    found = curves("keras-batches")
    assert {rank for _, rank in found} == {0}
    steps = [point.step for point in found["loss", 0]]
    assert steps[0] == 9  # four batches in each of the two epochs that were before
    assert [point.step for point in found["val_loss", 0]] == [12, 16, 20]
    assert set(steps) == {9, 12, 15, 16, 18, 20}


@compute
def train(steps: int) -> list[float]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=1))
    rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(64)]
    arguments = TrainingArguments(
        output_dir="out", max_steps=steps, logging_steps=2, report_to=[], save_strategy="no", disable_tqdm=True,
        learning_rate=0.01,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[integrations.trainer_callback()])
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@needs("transformers")
async def test_what_the_trainer_logs_is_there_once() -> None:
    async with pool("trainer-adapter", plugins.huggingface()) as opened:
        losses, _ = await opened.broadcast(train(6))
    found = curves("trainer-adapter")
    assert {rank for _, rank in found} == {0}
    assert [(point.step, point.value) for point in found["loss", 0]] == list(zip([2, 4, 6], losses, strict=True))
    assert found["train_runtime", 0][0].step == 6
    assert read_json(record("trainer-adapter") / "params.json")["learning_rate"] == 0.01


@compute
def fit_lightning(steps: int) -> tuple[str, int]:
    import lightning
    import torch

    class Line(lightning.LightningModule):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = (self.layer(batch) - 3 * batch).square().mean()
            self.log("loss", loss)
            self.log("rank", float(instance_info().rank))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])

    rows = torch.linspace(-1, 1, 64).unsqueeze(1)
    trainer: Any = lightning.Trainer(
        max_steps=steps, accelerator="cpu", strategy="ddp", devices=1, num_nodes=2, log_every_n_steps=2,
        logger=integrations.lightning_logger(), enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Line(0.1), torch.utils.data.DataLoader(rows, batch_size=4))
    return trainer.checkpoint_callback.dirpath, trainer.world_size


@needs("lightning")
async def test_what_a_lightning_module_logs_is_a_curve_of_each_rank() -> None:
    async with pool("lightning-adapter", plugins.torch()) as opened:
        places = await opened.broadcast(fit_lightning(8))
    assert [size for _, size in places] == [2, 2]
    assert places[0][0].endswith("outrider/job-1/checkpoints")
    found = curves("lightning-adapter")
    for rank in (0, 1):
        assert [point.step for point in found["loss", rank]] == [1, 3, 5, 7]
        assert [point.value for point in found["rank", rank]] == [rank] * 4
    assert found["loss", 0][-1].value < found["loss", 0][0].value
    assert read_json(record("lightning-adapter") / "params.json") == {"rate": 0.1}
