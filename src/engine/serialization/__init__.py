"""Values as bytes, and results and errors back.

`packer` and `payload` pack calls, `function_pickling` sends functions by name or as a copy, `program` is what a worker
runs, `error_translation` turns the end of a task into its value or error, `stored_objects` refers to kept values.

Public names: `packer.Packer`, `payload.Payload`, `payload.Blob`, `error_translation.error_of`, `function_pickling`,
`stored_objects.StoredObject`.
Open first: `packer.py`.
"""
