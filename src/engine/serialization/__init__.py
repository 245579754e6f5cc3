"""Conversion of calls, values and errors to bytes for the nodes, and back.

`packer` packs calls as `task_payload.Payload`. `function_pickling` sends functions by name or as a copy. `program` is
the code that a worker runs for a task. `error_translation` turns the end of a task into its value or an error.
`stored_objects` keeps track of values that stay on the nodes.

Public names: `packer.Packer`, `task_payload.Payload`, `payload.Blob`, `client_streams.Values`,
`frozen_items.FrozenItem`, `error_translation.error_of`, `function_pickling`, `program`, `stored_objects.StoredObject`.
Open first: `packer.py`.
"""

__all__ = [
    "client_streams",
    "error_notes",
    "error_translation",
    "frozen_items",
    "function_pickling",
    "packer",
    "payload",
    "program",
    "stored_objects",
    "task_payload",
    "versions",
]
