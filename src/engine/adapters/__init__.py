"""Adapters that log values of training frameworks into the run's record (its folder), one module per framework.

An adapter imports its framework when it is used. `loggable` turns a framework's values into metrics.

Public names: `keras_callback.RecordCallback`, `trainer_callback.RecordCallback`, `lightning_logger.LightningLogger`,
`loggable.LoggingHandler`.
Open first: `loggable.py`.
"""

__all__ = ["keras_callback", "lightning_logger", "loggable", "trainer_callback"]
