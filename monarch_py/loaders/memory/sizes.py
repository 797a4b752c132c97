"""Parses the sizes of memory that users pass to loaders."""

from monarch_py.errors import ConfigError
from monarch_py.util.units import parse_size


def n_bytes(argument: str, given: int | str, *, least: int = 1) -> int:
    """Returns a size in bytes. Raises ConfigError, which names the argument, if `given` is not a
    size or is less than `least` bytes.

    given : bytes, or a size such as "8GiB"
    """
    try:
        found = parse_size(str(given))
    except ValueError as error:
        raise ConfigError(f'{argument}: {error}; give bytes, or a size such as "1GiB"') from None
    if found < least:
        raise ConfigError(f'{argument}: {given!r} is too small; give a size such as "1GiB"')
    return found
