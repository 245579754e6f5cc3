"""Sources of machines: the provider protocol, and the providers.

`base` has the protocols, `registry` lists the providers by name, and `survey` serves `outrider ps` and `outrider gc`. A
provider is a folder, or a module like `ssh`. `cloud` is shared by all clouds, `shared` by all providers.

Public names: `base`, `errors`, `registry`, `survey`, `ssh.SSH`, `shared`, `cloud`.
Open first: `base.py`.
"""

__all__ = ["base", "errors", "registry", "ssh", "survey"]
