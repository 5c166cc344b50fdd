"""Whether there is a network."""

from __future__ import annotations

import socket
import threading
import urllib.request
from urllib.parse import urlsplit

_PATIENCE = 1.5  # seconds


def reachable(address: str) -> bool:
    """Whether the host of a URL, or the proxy for it, takes a connection within 1.5 seconds.

    Hub libraries retry for up to 45 seconds where no network is.
    """
    parts = urlsplit(urllib.request.getproxies().get(urlsplit(address).scheme, address))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    answer: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection((parts.hostname or "", port), timeout=_PATIENCE):
                answer.append(True)
        except OSError:
            pass

    # In a thread, because looking a name up knows no limit of time.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(answer)
