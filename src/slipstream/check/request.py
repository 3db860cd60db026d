"""What `slipstream check` was asked for."""

from __future__ import annotations

import ast
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import UsageError

DEFAULT_SCHEDULES = 20
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class CheckRequest:
    """A program, and the schedules that it is run under: program order first, then seeds.

    Attributes:
        path: the program; None for Slipstream's own round.
        arguments: of the program.
        schedules: how many seeds, from `seed` on. 0 is program order alone.
        seed: the first seed.
        exhaustive: how many orders of the recorded program at most; 0 is none.
        timeout: seconds that one schedule may take.
    """

    path: str | None
    arguments: tuple[str, ...] = ()
    schedules: int = DEFAULT_SCHEDULES
    seed: int = 0
    exhaustive: int = 0
    timeout: float = DEFAULT_TIMEOUT

    @property
    def name(self) -> str:
        """What reports call the program."""
        return self.path if self.path is not None else "Slipstream's own round"

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.seed, self.seed + self.schedules)

    def validate(self) -> None:
        """Check the values and the file.

        Raises:
            UsageError: a value is not possible, or the file is not there or not Python.
        """
        for what, value, least in (
            ("schedules", self.schedules, 0),
            ("seed", self.seed, 0),
            ("exhaustive", self.exhaustive, 0),
        ):
            if value < least:
                raise UsageError(f"{what} {value} is not possible; it is at least {least}.")
        if not self.timeout > 0:
            raise UsageError(f"timeout {self.timeout:g} is not possible; it is more than 0 seconds.")
        if self.path is not None:
            read_source(self.path)
        elif self.arguments:
            raise UsageError("arguments are for a program, and --round has none.")


def read_source(path: str) -> str:
    """Return the text of a Python file.

    Raises:
        UsageError: it is not there, cannot be read, or is not Python.
    """
    file = Path(path)
    if not file.exists():
        raise UsageError(f"{path} is not there; give the path of a Python program.")
    if file.is_dir():
        raise UsageError(f"{path} is a folder; give the Python file that starts the program.")
    try:
        with tokenize.open(path) as opened:
            source = opened.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        text = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"{path} is not Python this version can read{where}: {error.msg}{text}") from error
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path} is not Python source: {error}.") from error
    return source
