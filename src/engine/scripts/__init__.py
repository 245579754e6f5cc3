"""Scripts that run as the ranks of a pool, for the command `outrider run`.

`run` plans the pool and its files, `ranks` sets the variables of each rank, `program` is the process of one rank,
`driver` is the process that owns a detached run (one that continues without the terminal).

Public names: `run.planned`, `driver.detach`, `exit_codes.exit_code`.
Open first: `run.py`.
"""
