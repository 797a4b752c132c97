"""LocalFirstSampler: batches of equal size, with samples assigned to nodes that hold them."""

from monarch_py.arrays import Int32s
from monarch_py.loaders.samplers.held import HeldSampler
from monarch_py.plan.schedule import Deal, EpochSchedule


class LocalFirstSampler(HeldSampler):
    """Assigns the samples of each global batch to nodes that hold them, as far as batches of equal
    size allow (Yang and Cong 2019). HeldSampler describes the arguments."""

    EXTRA = True

    def _dealt(self, order: Int32s) -> EpochSchedule:
        deal = Deal(self._at.per_step, self.ranks.world_size, self.ranks.nodes)
        return deal.schedule(order, self.holders)
