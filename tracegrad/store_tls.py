"""Who vouches for a store that is asked over https, and who for us, as parameters of its address.

`https://127.0.0.1:8123?ca_cert=authority.pem&client_cert=ours.pem&client_cert_key=ours.key`: so that one string says
all there is to know of a store, wherever addresses are passed on. Without `ca_cert` it is whom the system trusts.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tracegrad.errors import SettingsError

NAMES = ("ca_cert", "client_cert", "client_cert_key")


def with_files(url: str, *files: Path | str | None) -> str:
    """`url` with files in the order of NAMES; None: none."""
    given = {name: str(Path(file).absolute()) for name, file in zip(NAMES, files, strict=True) if file is not None}
    return urlunsplit(urlsplit(url)._replace(query=urlencode(given))) if given else url


def files_of(url: str) -> Mapping[str, str]:
    """The files that an address names, by NAMES. Raises SettingsError for any other parameter."""
    given = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    if unknown := [name for name in given if name not in NAMES]:
        raise SettingsError(f"the store's address has a parameter {unknown[0]!r}: there are {', '.join(NAMES)}")
    return given


def context_of(url: str) -> ssl.SSLContext | None:
    """For an https address; None for another. Raises SettingsError where a file is not what it should be."""
    if urlsplit(url).scheme != "https":
        return None
    files = files_of(url)
    try:
        context = ssl.create_default_context(cafile=files.get("ca_cert"))
        if "client_cert" in files:
            context.load_cert_chain(files["client_cert"], files.get("client_cert_key"))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"certificates of the store's address cannot be used: {error}") from error
    return context
