"""The open pool in the user's program: it takes jobs, sends them to the pool's actor, and hands out their results.

`job_intake` packs a call, sends it as a job and cancels it; `jobs` waits for results. `open_pool` opens and closes the
provider and the actors, `opening` has what that needs, and `cleanup` collects errors of the end. `mapping`, `grouping`,
`streaming` and `file_transfer` are verbs, `running_tasks` asks nodes for stacks and profiles. `budget` ends a pool that
costs too much or is idle. `loop_thread` is the event loop of a `SyncPool`, `blocking_calls` what waits for it.
`observer` passes events to sinks, `job_failures` makes events of failed jobs, `traced_packer` adds spans of traces.

Public names: `open_pool.OpenPool`, `job_intake.JobIntake`, `jobs.SubmittedJob`, `jobs.BroadcastJob`, `opening.Opening`,
`loop_thread.LoopThread`, `budget.Cost`, `adoption`, `provider_fallback`, `signals`.
Open first: `job_intake.py`, then `open_pool.py`.
"""

__all__ = [
    "adoption",
    "blocking_calls",
    "budget",
    "cleanup",
    "file_transfer",
    "grouping",
    "job_failures",
    "job_intake",
    "jobs",
    "loop_thread",
    "mapping",
    "observer",
    "open_pool",
    "opening",
    "provider_fallback",
    "running_tasks",
    "signals",
    "streaming",
]
