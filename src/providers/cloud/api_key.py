"""The API key of a cloud's user, where it is the only credential: its file or variable, and the account that it opens.

A pool's place names the account, so that nobody looks for its machines with the key of another one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ...lazy_dataclass import dataclass
from ..errors import NotAuthorized
from ..threads import in_thread

ANY = "any"  # the account of whatever key there is
_KEY = re.compile(r"^\s*(?:api_key\s*=\s*)?(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeys:
    """The places in which users of one cloud have their keys.

    ``provider``: the class with the option ``key_file``, such as ``Lambda``. ``name``: of the provider in the journal.
    ``variable``: of the environment. ``page``: the address at which keys are made. ``usual``: the file in which the
    cloud's own client leaves it; empty: it leaves none.
    """

    provider: str
    name: str
    variable: str
    page: str
    usual: str = ""

    async def of(self, place: Mapping[str, str]) -> tuple[str, str]:
        """Return the key for a pool's place, and the account's name, by which places tell accounts apart.

        Raises:
            NotAuthorized: there is no key, or it is another than the one that the place was made with.
        """
        key = await in_thread(self.read, place.get("key_file"), os.environ)
        mine, account = account_of(key), place.get("account", ANY)
        if account not in (ANY, mine):
            where = place.get("key_file") or self.variable
            raise NotAuthorized(
                f"these machines were made with another key of {self.provider}'s (account {account}) than {where} has "
                f"now ({mine}): use that one; if it was replaced by a newer one of the same account, "
                f"--place {self.name}:account={ANY} looks there"
            )
        return key, mine

    def read(self, key_file: str | None, environment: Mapping[str, str]) -> str:
        """Return the key of ``key_file``, or else of the variable, or else of the ``usual`` file where it exists.

        A file has it as a line of its own, or after ``api_key =``.

        Raises:
            NotAuthorized: there is none.
        """
        named = environment.get(self.variable, "").strip()
        if key_file is None and named:
            return named
        if key_file is None and not (self.usual and Path(self.usual).expanduser().exists()):
            reason = f"there is no API key for {self.provider}: make one at {self.page}, and set {self.variable} to it"
            raise NotAuthorized(reason)
        file = key_file or self.usual
        option = f"{self.provider}(key_file={file!r})"
        try:
            match = _KEY.search(Path(file).expanduser().read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise NotAuthorized(f"{option} cannot be read ({why}): it has an API key alone") from None
        if match is None:
            raise NotAuthorized(f"{option} has no API key: it is a line of its own there")
        return match[1]


def account_of(key: str) -> str:
    """A name for a key's account, where the cloud has no call that tells it: a hash of the key stands for it."""
    return hashlib.sha256(key.encode()).hexdigest()[:8]
