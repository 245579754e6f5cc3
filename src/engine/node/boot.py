# ruff: noqa: UP036 - any Python that a host has, however old, must be able to run this file
"""The runtime's ``__main__``: ``python3 -I <runtime> install | volumes | daemon | bridge``.

Each of these commands runs the ``main`` function of one module.
"""

import os
import sys

# `pure` (msgpack in Python) is the last entry of sys.path: a compiled msgpack of the host is preferred.
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pure"))  # noqa: PTH100, PTH118, PTH120


def run() -> int:
    verb = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if verb == "install":  # this command installs a suitable Python, so it must run on an old Python
        if sys.version_info < (3, 8):
            return _too_old("3.8")
        # an absolute import, because this file runs as a script, outside of the package
        from outrider.engine.image.installer import main as installer

        installer.main()
    if verb == "volumes":  # the installer starts this command, with the Python that runs the installer
        from outrider.engine.volumes import mount_supervisor

        return mount_supervisor.main()
    if sys.version_info < (3, 11):
        return _too_old("3.11")
    if verb == "bridge":
        from outrider.engine.node import bridge

        return bridge.main()
    if verb == "daemon":
        from outrider.engine.node import daemon

        return daemon.main()
    sys.stderr.write("outrider: install, volumes, daemon or bridge?\n")
    return 2


def _too_old(least: str) -> int:
    version = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    sys.stderr.write("outrider: this host's Python is " + version + "; at least " + least + " is needed\n")
    return 1


if __name__ == "__main__":
    sys.exit(run())
