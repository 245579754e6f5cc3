"""Machines: what a provider is, the providers, and the parts that they share.

`base` has the protocols, `registry` lists the providers by name, `journal` is written before anything is created,
`survey` serves `outrider ps` and `gc`, `contract` has the checks that every provider must pass.

Public names: `base`, `errors`, `registry`, `journal.Journal`, `survey`, `ssh.SSH`, `watching`, `contract`.
Open first: `base.py`.
"""
