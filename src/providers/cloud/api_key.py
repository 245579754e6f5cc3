"""The API key of a cloud whose users have no other credentials: where it is stored, and the account it belongs to.

A pool's place names the account, so that no program searches for the pool's machines with another account's key.
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

ANY = "any"  # an account's name in a place that means: the account of the key that is found
_KEY = re.compile(r"^\s*(?:api_key\s*=\s*)?(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeys:
    """The places in which users of one cloud store their API keys.

    ``provider``: the class with the option ``key_file``, such as ``Lambda``. ``name``: the provider's name in the
    journal. ``variable``: the environment variable with the key. ``page``: the web page on which users create keys.
    ``usual``: the file in which the cloud's own client stores the key; empty: the client stores none.
    """

    provider: str
    name: str
    variable: str
    page: str
    usual: str = ""

    async def of(self, place: Mapping[str, str]) -> tuple[str, str]:
        """Return the key to use in a place, and the name of the key's account.

        Raises:
            NotAuthorized: There is no key, or the key belongs to another account than the place.
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
        """Return the key in ``key_file``; without a ``key_file``, the key in the environment variable, or else in the
        ``usual`` file.

        In a file, the key is alone on a line, or follows ``api_key =``.

        Raises:
            NotAuthorized: There is no key.
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
    """Return a name for a key's account, for clouds that have no call to request the account: a hash of the key."""
    return hashlib.sha256(key.encode()).hexdigest()[:8]
