"""Scripts that run as the ranks of a pool, for `outrider run`.

`run` plans the pool and its files, `ranks` sets the variables of each rank, `program` is the rank's own process,
`driver` owns a detached run.

Public names: `run.planned`, `driver.detach`, `exit_codes.exit_code`.
Open first: `run.py`.
"""
