# ruff: noqa: UP036 - this file must be understood by whatever Python a host has
"""The zipapp's ``__main__``: says so where the host's Python is too old, else becomes the daemon."""

import sys

if sys.version_info < (3, 11):
    sys.exit("outrider: this host's python3 is %d.%d; at least 3.11 is needed" % sys.version_info[:2])  # noqa: UP031

from outrider.engine.executor.daemon import main  # absolute: this file is not in the package

sys.exit(main())
