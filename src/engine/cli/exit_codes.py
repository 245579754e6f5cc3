"""The exit codes of the verbs, except those of `outrider run` (`engine/scripts/exit_codes.py`)."""

DONE = 0
# exit codes of verbs that end machines: no machine is left, some are left, it is unknown whether some are left
NOTHING, SOMETHING, UNKNOWN = 0, 1, 2
# an invalid option or file, an unusable state folder, or a requested run, node or machine that does not exist
WRONG = 2
INTERRUPTED = 130  # after Ctrl-C: 128 + SIGINT
CLOSED = 141  # the reader of stdout has closed it: 128 + SIGPIPE, as for programs that do not handle SIGPIPE
