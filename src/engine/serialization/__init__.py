"""Convert values to bytes, and bytes back to results and errors.

`packer` and `payload` pack calls, `function_pickling` sends functions by name or as a copy, and `program` is the code
that a worker runs for a task. `error_translation` turns the end of a task into its value or error, and `stored_objects`
refers to kept values.

Public names: `packer.Packer`, `payload.Payload`, `payload.Blob`, `error_translation.error_of`, `function_pickling`,
`stored_objects.StoredObject`.
Open first: `packer.py`.
"""
