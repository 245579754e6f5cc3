"""Buckets as folders of a host, mounted by rclone. Runs on hosts, with the standard library.

Public names: `mount_supervisor`, `mount_path`, `rclone`.
Open first: `mount_supervisor.py`.
"""
