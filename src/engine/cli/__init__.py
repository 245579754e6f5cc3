"""The command `outrider`: a module for each verb, imported when the verb is called.

Beside the verbs: `pool_search` and `surveys` find the pools of other programs, `orphans` decides which pools have no
owner, `ssh_command` and `container_command` build command lines that reach a node, `failures` formats the error that
ends a command, `exit_codes` has the exit codes.

Public names: `main.main`, and `log.main` (`outrider log` on nodes).
Open first: `main.py`.
"""
