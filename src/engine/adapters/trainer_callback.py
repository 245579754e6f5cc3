"""A callback for the ``Trainer`` of Hugging Face that logs the Trainer's values.

Only this module imports transformers.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]  it may not be here

from .loggable import log_numbers, log_settings


class RecordCallback(TrainerCallback):  # type: ignore[misc]  # of a framework that may not be here
    """Logs the Trainer's arguments and values on rank 0. The Trainer's losses are already the mean of all ranks."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            log_settings(args.to_sanitized_dict())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero and logs:
            log_numbers(logs, state.global_step)
