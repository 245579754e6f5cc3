"""The exit codes of the verbs, but for those of `outrider run` (`engine/scripts/exit_codes.py`)."""

DONE = 0
NOTHING, SOMETHING, UNKNOWN = 0, 1, 2  # what is left, of verbs that end machines
WRONG = 2  # an option, a file, or the state folder; or what was asked for is not there
INTERRUPTED = 130  # 128 + SIGINT
CLOSED = 141  # 128 + SIGPIPE, as of programs that know nothing of Python
