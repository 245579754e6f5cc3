"""Adapters that put what frameworks log into the record of the run, a module for each.

Each imports its framework when it is used. `loggable` turns a framework's values into metrics.

Public names: `keras_callback.RecordCallback`, `trainer_callback.RecordCallback`, `lightning_logger.LightningLogger`,
`logging_handler.LoggingHandler`.
Open first: `loggable.py`.
"""
