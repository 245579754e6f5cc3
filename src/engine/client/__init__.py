"""The client's side of an open pool: jobs, maps, streams, kept objects, budgets and signals.

`open_pool` holds the parts together, `job_intake` accepts calls, `jobs` runs each one, `objects` and `refs` keep large
values on nodes, `remaking` computes lost ones again, `limits` end a pool, `file_transfer` moves files.

Public names: `open_pool.OpenPool`, `jobs.SubmittedJob`, `refs.Ref`, `mapping.MapRun`, `budget.Budget`,
`loop_thread.LoopThread`, `provider_fallback.ProviderFallback`, `adoption`.
Open first: `open_pool.py`.
"""
