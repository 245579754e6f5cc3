"""The client's side of an open pool: jobs, maps, streams, kept objects, budgets and signals.

`open_pool` opens and closes a pool, `job_intake` accepts calls, `jobs` represents submitted calls, `objects` keeps
large values on nodes, `remaking` computes lost values again, `limits` ends a pool at its limits, `file_transfer` moves
files.

Public names: `open_pool.OpenPool`, `jobs.SubmittedJob`, `mapping.MapRun`, `budget.Budget`, `loop_thread.LoopThread`,
`provider_fallback.ProviderFallback`, `adoption`.
Open first: `open_pool.py`.
"""
