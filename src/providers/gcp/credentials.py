"""Google's credentials, as a `cloud.http.Access`. The library google-auth finds and refreshes them, in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ..cloud.extra import from_extra
from ..cloud.http import Expiring
from ..errors import NotAuthorized, ProviderError
from ..threads import in_thread

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_SIGN_IN = "run 'gcloud auth application-default login', or give GCP(credentials='service-account.json')"


class Credentials(Expiring):
    """The ``credentials`` of google-auth, with a lock. ``project``: named by the credentials or by the environment;
    empty: by neither.
    """

    def __init__(self, credentials: Any, project: str) -> None:
        super().__init__()
        self.project, self._credentials = project, credentials

    @property
    def token(self) -> str:
        return self._credentials.token or ""

    @property
    def expired(self) -> bool:
        return bool(self._credentials.expired)  # google-auth counts credentials as expired some minutes early

    async def refresh(self) -> None:
        from google.auth.exceptions import GoogleAuthError, TransportError

        try:
            await in_thread(self._credentials.refresh, _request)
        except TransportError as error:
            raise ProviderError(f"Google does not answer with a token ({error})", retry_after_s=2.0) from None
        except GoogleAuthError as error:
            reason = str(error.args[0] if error.args else error)
            raise NotAuthorized(f"the Google credentials are not valid any more: {_SIGN_IN} ({reason})") from None


def find(file: str | None) -> tuple[Any, str]:
    """Return credentials of google-auth, and their project: the key of a service account in ``file``, or the
    credentials that Google's own libraries find.

    Raises:
        NotAuthorized: There are no credentials.
        BadRequest: google-auth is not installed.
    """
    with from_extra("GCP", "gcp", "google", "cryptography", "rsa"):
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2 import service_account
    in_file = f", in {file}" if file else ""
    try:
        if file is not None:
            credentials = service_account.Credentials.from_service_account_file(file, scopes=SCOPES)
            project = credentials.project_id
        else:
            credentials, project = google.auth.default(scopes=SCOPES, request=_request)
    except (GoogleAuthError, OSError, ValueError) as error:
        raise NotAuthorized(f"there are no Google credentials: {_SIGN_IN} ({error}{in_file})") from None
    return credentials, project or ""


def _request(
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = 20.0,
    **_: object,
) -> SimpleNamespace:
    """Send a request for google-auth with httpx, which `outrider[gcp]` installs anyway."""
    import httpx
    from google.auth.exceptions import TransportError

    try:
        response = httpx.request(method, url, content=body, headers=headers, timeout=timeout)
    except httpx.HTTPError as error:
        raise TransportError(f"{type(error).__name__} at {url}") from error
    return SimpleNamespace(status=response.status_code, headers=response.headers, data=response.content)
