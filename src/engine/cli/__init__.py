"""The command `outrider`: a module for each verb, imported when the verb is called.

`pool_search` and `surveys` find machines of other programs, `orphans` decides which have no owner, `ssh_command` and
`container_command` build commands that reach a node, `failures` formats the error that ends a command, `exit_codes` has
the exit codes.

Public names: `main.main`, `log.main` (the part that works on nodes).
Open first: `main.py`.
"""
