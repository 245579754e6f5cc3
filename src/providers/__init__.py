"""Sources of machines: the provider protocol, the providers, and the modules that several providers share.

`base` has the protocols, `registry` lists the providers by name, and `survey` serves `outrider ps` and `outrider gc`.
A provider writes to `journal` before it creates anything. `contract` has the checks that every provider must pass.

Public names: `base`, `errors`, `registry`, `journal.Journal`, `survey`, `ssh.SSH`, `watching`, `contract`.
Open first: `base.py`.
"""
