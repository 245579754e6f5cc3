# ruff: noqa: UP036 - this file must be understood by whatever Python a host has
"""The runtime's ``__main__``: ``python3 -I <runtime> install | volumes | daemon | bridge``.

Each verb runs the ``main`` of a module.
"""

import os
import sys

# The last entry, so that a compiled msgpack of the host is preferred, and so is the runtime itself (the first entry).
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pure"))  # noqa: PTH100, PTH118, PTH120


def run() -> int:
    verb = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if verb == "install":  # this verb installs a suitable Python, so it must run on an old one
        if sys.version_info < (3, 8):
            return _too_old("3.8")
        # absolute import: this file is not in the package
        from outrider.engine.image.installer import main as installer

        installer.main()
    if verb == "volumes":  # the installer starts this verb, with its own Python
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
