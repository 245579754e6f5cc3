"""The module for `python -m outrider`, which runs the command `outrider`. On nodes, only `outrider log` works."""

import sys

if sys.argv[1:2] == ["log"]:
    from outrider.engine.cli.log import main as log

    sys.exit(log(sys.argv[2:]))
else:
    from outrider.engine.cli.main import main

    main()
