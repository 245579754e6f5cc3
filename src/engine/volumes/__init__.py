"""Volumes: buckets in object storage as folders of a host, mounted by rclone.

This code runs on hosts, with the standard library only.

Public names: `mount_supervisor`, `mount_path`, `rclone`.
Open first: `mount_supervisor.py`.
"""

__all__ = ["mount_path", "mount_supervisor", "rclone"]
