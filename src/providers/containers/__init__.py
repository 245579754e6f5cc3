"""The containers provider: nodes are containers of Docker or Podman, on this computer or on hosts.

`cloud` creates, finds and removes containers. `runtime` runs the commands of Docker and Podman, and parses their output
and errors; `first_process.sh` enforces a container's lease.

Public names: `provider.Containers`, `surveyor.ContainerSurveyor`.
Open first: `cloud.py`.
"""

__all__ = ["provider"]
