"""The command `outrider`: a module for each verb, or for a few verbs alike, imported when the verb is called.

`main` has the table of verbs. `follow` has logs and wait, `control` has stop, stacks and profile, `pages` has report
and ui, `ssh` has ssh and exec. `pool_search` finds machines of other programs and decides which have no owner,
`node_choice` builds commands that reach a node, `common` has exit codes, options and errors.

Public names: `main.main`, `log.main` (the part that works on nodes).
Open first: `main.py`.
"""

__all__ = ["log", "main"]
