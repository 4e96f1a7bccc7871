"""``python -m raysts``, and the console script."""

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command. Ctrl-C ends it without a traceback from its first moment."""
    command_ends = signal.getsignal(signal.SIGINT)
    if command_ends is signal.default_int_handler:  # else whoever started it wants none
        signal.signal(signal.SIGINT, _end)
    from raysts import cli

    signal.signal(signal.SIGINT, command_ends)
    cli.main()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End while modules are imported, which nothing may be raised in."""
    os.write(2, b"raysts: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
