"""Opens the tiers of a configuration when a daemon starts, and closes them when it ends."""

import logging

from monarch_py.config.schema import Config, TierConfig
from monarch_py.errors import TierError
from monarch_py.storage.durability import Keeper
from monarch_py.storage.memory import MemoryRoom
from monarch_py.storage.tiers import Tier, refuse_replaceable

log = logging.getLogger("monarch.tiers")


class OpenTiers:
    """The tiers of a configuration. The constructor raises TierError if none of them can be used.

    tiers : the tiers by number; None for a tier that cannot be used. The owner of this object may
        append more tiers; `close` closes them too
    keepers : for each persistent tier, by its number, the object that records the tier's copies
    why : for each configured tier, why it is not used; "" for a tier in use
    memory_room : the memory that all RAM tiers share
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.tiers: list[Tier | None] = []
        self.keepers: dict[int, Keeper] = {}
        self.why: list[str] = []
        self.memory_room = MemoryRoom()
        try:
            for number, tier_config in enumerate(config.tiers):
                self._add(number, tier_config)
        # BaseException instead of Exception, so that the keepers are ended whatever the exception
        # is.
        except BaseException:
            self.end_unused()
            raise
        if not any(self.tiers):
            raise TierError("no tier can be used: " + "; ".join(self.why))

    def _add(self, number: int, config: TierConfig) -> None:
        """Opens a tier, or records why the tier cannot be used."""
        try:
            self.tiers.append(self._open(number, config))
            self.why.append("")
        except TierError as error:
            log.warning("%s", error)
            self.tiers.append(None)
            self.why.append(str(error))

    def _open(self, number: int, config: TierConfig) -> Tier:
        refuse_replaceable(config.mount_point)
        tier = Tier(config, config_file=self._config.file, memory_room=self.memory_room)
        try:
            if config.persistent:
                self.keepers[number] = Keeper(tier, self._config.block_size_bytes)
                self.keepers[number].reconcile()
            else:
                # A daemon that was killed may have left copies in the tier.
                tier.remove_all(tier.listing()["number"])
        except (OSError, TierError) as error:
            told = error if isinstance(error, TierError) else tier.broken(error)
            tier.give_up(str(told))  # so that the tier's keeper writes nothing from now on
            if (keeper := self.keepers.pop(number, None)) is not None:
                keeper.end()
            tier.close()
            raise told from error
        return tier

    def end_unused(self) -> None:
        """Ends the keepers of a daemon that has served nothing, and so has checked no copies. If a
        tier's copies had to be checked, the next daemon must check them. All other manifests record
        a clean end."""
        for keeper in self.keepers.values():
            if keeper.must_check:
                keeper.distrust()
            keeper.end()

    def close(self, *, are_used: bool) -> None:
        """Closes all tiers, and empties those that are not persistent.

        are_used : whether some threads could not be ended, and may still use the descriptors of the
            tiers' directories
        """
        for keeper in self.keepers.values():
            keeper.end()
        for tier in self.tiers:
            if tier is not None:
                (tier.close if tier.config.persistent else tier.discard)(is_used=are_used)
