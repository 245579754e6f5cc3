"""The exit codes of the verbs, but for those of `outrider run` (`engine/scripts/exit_codes.py`)."""

DONE = 0
NOTHING, SOMETHING, UNKNOWN = 0, 1, 2  # the machines left by verbs that end machines
WRONG = 2  # an option, a file, or the state folder is wrong; or a requested thing does not exist
INTERRUPTED = 130  # 128 + SIGINT
CLOSED = 141  # 128 + SIGPIPE, as of programs that know nothing of Python
