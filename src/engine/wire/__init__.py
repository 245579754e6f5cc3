"""The wire format: messages, frames, sessions, and objects as bytes.

Nodes run this code too: it imports only the standard library, msgpack and cloudpickle. `messages` defines every
message, `codec` encodes messages as frames, `values` and `pickler` convert objects to bytes, `copies` pickles code that
nodes cannot import, and `session` is the state that survives a reconnect.

Public names: `messages`, `codec`, `values`, `pickler`, `copies`, `script_modules`, `importable`, `log_records`,
`random_streams`, `session.Session`.
Open first: `messages.py`, then `session.py`.
"""

__all__ = [
    "codec",
    "copies",
    "importable",
    "large_copy",
    "log_records",
    "messages",
    "pickler",
    "random_streams",
    "ranges",
    "reducers",
    "script_modules",
    "session",
    "spawned_main",
    "values",
]
