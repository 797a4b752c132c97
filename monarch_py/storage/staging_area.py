"""The default staging area, for a daemon that needs an area but whose configuration names none."""

import os

from monarch_py.config.schema import MAX_TIERS, TierConfig
from monarch_py.errors import TierError
from monarch_py.ipc.session import shm_root
from monarch_py.storage import memory
from monarch_py.util.units import GIB

# The area's size is the smallest of three: DEFAULT_BYTES [bytes], 1/SHARE_OF_DISK of the file
# system's free space, and 1/SHARE_OF_MEMORY of the available memory.
DEFAULT_BYTES = GIB
SHARE_OF_DISK, SHARE_OF_MEMORY = 4, 8


def default_area(tiers: int) -> TierConfig:
    """Returns the configuration of a staging area in shared memory. Its size depends on the room
    that is free now. Raises TierError if no area can be added.

    tiers : the number of tiers in the daemon's configuration
    """
    place = shm_root()
    if tiers >= MAX_TIERS:
        raise TierError(f"the configuration already has {tiers} tiers, the maximum")
    try:
        room = os.statvfs(place)
    except OSError as error:
        raise TierError(f"{place}: {error.strerror}") from None
    free = room.f_bavail * room.f_frsize // SHARE_OF_DISK
    quota = min(DEFAULT_BYTES, free, memory.available_bytes() // SHARE_OF_MEMORY)
    return TierConfig(place, quota, "ram")
