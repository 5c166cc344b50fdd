"""What becomes of a command whose output nobody reads any more, as in `python scripts/list.py | head`."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

_OUTPUTS = (1, 2)  # stdout and stderr
_CODE = 128 + signal.SIGPIPE


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the exit code of `main`, or quietly with that of SIGPIPE once nobody reads its output."""
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        leave_if_unread()
        raise
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            end.code = _CODE  # rich leaves with 1, and has sent what is still to be written nowhere
        raise
    sys.exit(code)


def is_unread() -> bool:
    """Whether the pipe behind stdout or stderr has no reader any more."""
    return bool(_unread())


def leave_if_unread() -> None:
    """Ends the process as SIGPIPE would if nobody reads its output; what is still to be written goes nowhere.

    Raises:
        SystemExit: with 128 + 13.
    """
    unread = _unread()
    if unread:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in unread:
            os.dup2(nowhere, output)
        raise SystemExit(_CODE)


def _unread() -> list[int]:
    look = select.poll()
    for output in _OUTPUTS:
        look.register(output, 0)
    return [output for output, event in look.poll(0) if event & select.POLLERR]
