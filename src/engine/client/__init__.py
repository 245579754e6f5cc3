"""The open pool in the user's program: it takes jobs, sends them to the pool's actor, and hands out their results.

`job_intake` takes calls, `jobs` waits for them, `open_pool` opens and closes the provider and the actors. Around them:
verbs (`mapping`, `grouping`, `streaming`, `file_transfer`), limits (`budget`), signals and threads.

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
