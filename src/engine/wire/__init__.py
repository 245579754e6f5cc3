"""The wire format: messages, frames, sessions, and objects as bytes.

Nodes run this code too: it imports the standard library, msgpack and cloudpickle. `messages` lists every message,
`codec` turns messages into frames, `values` and `pickler` turn objects into bytes, `copies` sends code that nodes
cannot import, `session` is the part that survives a reconnect.

Public names: `messages`, `codec`, `values`, `pickler`, `session.Session`.
Open first: `messages.py`, then `session.py`.
"""
