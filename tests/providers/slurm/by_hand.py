"""A Slurm made by hand, as far as a fleet and a surveyor ask it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import anyio.lowlevel

from outrider.providers.errors import HostAway
from outrider.providers.shared.login_host import COMMAND_S, Ended

AWAY = HostAway("The connection was lost", retry_after_s=0.05)


class HandMade:
    """Slurm as far as a fleet asks it. ``state`` is that of new jobs; ``lost``, ``refused``: what sbatch does next."""

    where = "here"

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, str]] = {}
        self.submitted = 0
        self.state, self.reason = "RUNNING", "None"
        self.lost = self.made_when_lost = False
        self.refused = ""
        self.away = 0  # questions to squeue that fail
        self.hidden_for = 0  # questions to squeue whose answers lack all jobs
        self.accounts: list[str] | None = None  # sacct's answers, the last one again and again; None: it is off
        self.said: list[str] = []  # the commands

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = COMMAND_S) -> Ended:
        await anyio.lowlevel.checkpoint()
        named = next((each for each in ("squeue", "sacct") if each in argv), argv[0])  # after the variables of env
        what = argv[3] if argv[0] == "sh" else named
        self.said.append(" ".join([what, *argv[4:]] if argv[0] == "sh" else argv))
        said = getattr(self, f"on_{what}", lambda *_: "")(*argv[4:] if argv[0] == "sh" else argv)
        return said if isinstance(said, Ended) else Ended(0, said)

    def on_look(self, *_: str) -> str:
        return "outrider:root:/jobs\noutrider:user:me\n"

    def on_submit(self, folder: str, *arguments: str) -> str | Ended:
        self.submitted += 1
        if self.refused:
            return Ended(1, "", self.refused)
        if not self.lost or self.made_when_lost:
            given = dict(each[2:].split("=", 1) for each in arguments if "=" in each)
            count = int(given["nodes"].partition("-")[0])
            nodes = f"c[0-{count - 1}]" if self.state == "RUNNING" else ""
            job = str(len(self.jobs) + 1)
            self.jobs[job] = {"state": self.state, "nodes": nodes, "comment": given["comment"], "folder": folder}
        if self.lost:
            raise AWAY
        return f"{len(self.jobs)}\n"

    def on_squeue(self, *_: str) -> str | Ended:
        if self.away:
            self.away -= 1
            return Ended(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        if self.hidden_for:
            self.hidden_for -= 1
            return ""
        return "".join(
            f"{job}|{each['state']}|{each['nodes']}|N/A|1:00:00|{self.reason}|{each['comment']}\n"
            for job, each in self.jobs.items()
        )

    def on_nodes(self, folder: str) -> str:
        of = [each for each in self.jobs.values() if f"{each['folder']}/nodes" == folder and each["state"] == "RUNNING"]
        said = json.dumps({"host_key": "ssh-ed25519 KEY", "step": "1.0", "user": "me", "lease": "/l", "notice": "/n"})
        return "".join(f"outrider:node:c{number}:{said}\n" for _ in of for number in range(2))

    def on_end(self, *words: str) -> None:
        self.on_scancel(*words[words.index("--") :])

    def on_scontrol(self, *_: str) -> str:
        return "PartitionName=main Default=YES MaxNodes=1 TotalNodes=4 State=UP\n"

    def on_scancel(self, _: str, *jobs: str) -> None:
        for job in jobs:
            self.jobs[job]["state"] = "COMPLETED"

    def on_sacct(self, *_: str) -> str | Ended:
        if self.accounts is None:
            return Ended(1, "", "Slurm accounting storage is disabled\n")
        return self.accounts.pop(0) if len(self.accounts) > 1 else self.accounts[0]

    @property
    def alive(self) -> list[str]:
        return [job for job, each in self.jobs.items() if each["state"] != "COMPLETED"]
