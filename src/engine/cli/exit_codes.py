"""The exit codes of the verbs, except those of `outrider run` (`engine/scripts/exit_codes.py`)."""

DONE = 0
# for verbs that end machines: no machine is left, some are left, or that is unknown
NOTHING, SOMETHING, UNKNOWN = 0, 1, 2
WRONG = 2  # an invalid option or file, an unusable state folder, or a requested thing that does not exist
INTERRUPTED = 130  # 128 + SIGINT
CLOSED = 141  # 128 + SIGPIPE, as for programs that do not handle SIGPIPE
