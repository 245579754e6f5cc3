"""The Trainer of transformers on two nodes: a tiny model with random weights learns to count."""

import anyio

from outrider import Local, Pool, compute, plugins, stdout


@compute
@stdout(only="head")
def train(steps: int) -> tuple[str, list[float], list[int]]:
    """How Trainer ran, the losses it logged, and how the model counts on from 5."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config)
    texts = [torch.arange(start, start + 16) % 64 for start in range(256)]
    arguments = TrainingArguments(
        output_dir="out",  # in the node's own folder, which goes with it: save what is to stay elsewhere
        per_device_train_batch_size=8,
        max_steps=steps,
        learning_rate=0.01,
        logging_steps=steps // 4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=[{"input_ids": text, "labels": text} for text in texts]
    )
    trainer.train()  # it has found the process group: each rank trains on its share
    model.eval()
    counted = [3, 4, 5]
    with torch.no_grad():
        for _ in range(5):
            scores = model(torch.tensor([counted])).logits[0, -1]
            counted.append(int(scores.argmax()))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return f"{arguments.parallel_mode.name.lower()}, {arguments.world_size} ranks", losses, counted


async def main() -> None:
    async with Pool(provider=Local(), nodes=2, plugins=[plugins.huggingface()]) as pool:
        by_rank = await pool.broadcast(train(80))
    how, losses, counted = by_rank[0]
    print(f"Trainer: {how}")
    print(f"loss: {losses[0]:.2f} to {losses[-1]:.2f}")
    print(f"counts: {counted}, on every rank: {all(of_rank[2] == counted for of_rank in by_rank)}")


if __name__ == "__main__":
    anyio.run(main)
