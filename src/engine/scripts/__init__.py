"""Scripts that run as the ranks of a pool, for the command `outrider run`.

`run` plans the pool and its files, `program` is the process of one rank with its variables, `driver` is the process
that owns a detached run (one that continues without the terminal).

Public names: `run.planned`, `driver.detach`, `failures.exit_code`.
Open first: `run.py`.
"""

__all__ = ["driver", "failures", "run"]
