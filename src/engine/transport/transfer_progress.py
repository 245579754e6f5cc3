"""Track how far one blob has come, over all the channels and connections that carried it."""

from __future__ import annotations


class TransferProgress:
    """Counts the tries to transfer a blob, and how far they came.

    TRANSFER-1: after ``tries`` tries in a row of which none came further than those before, there is no other.
    """

    def __init__(self, tries: int) -> None:
        self._most = tries
        self._farthest = 0
        self.tries = 0  # begun since it came further than ever
        self.at_bytes = 0  # of the present try

    def begin(self, last: Exception | None) -> None:
        """Begin another try. ``last`` is the error of the one before, where that is known.

        Raises:
            RuntimeError: there have been enough tries.
        """
        if self.at_bytes > self._farthest:
            self._farthest, self.tries = self.at_bytes, 0
        if self.tries == self._most:
            how = f" ({last})" if last is not None else ""
            raise RuntimeError(f"it was begun {self.tries} times, and came no further than {self._farthest} bytes{how}")
        self.tries += 1
        self.at_bytes = 0

    def moved(self, count: int) -> None:
        self.at_bytes += count
