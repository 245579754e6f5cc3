"""Outrider beside Ray, Dask, Parsl, Monarch and the executor pool, on this computer: ``make bench-peers``."""
