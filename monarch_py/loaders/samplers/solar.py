"""SolarSampler (SOLAR paper): batches differ in size, and all nodes load equally many samples."""

import logging
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from monarch_py.arrays import Int32s, Ints
from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.held import HeldSampler
from monarch_py.loaders.samplers.state import State
from monarch_py.plan.samplers import NONE, DistributedSampler
from monarch_py.plan.schedule import Deal, EpochSchedule
from monarch_py.policies.solar.epochs import edge_costs, order_epochs, path_cost

log = logging.getLogger("monarch.loaders")


class SolarSampler(HeldSampler):
    """Assigns the samples of each global batch so that a node gets all samples that it holds, up to
    a cap. The other samples are assigned so that all nodes load the same number of samples (section
    4.3 of the SOLAR paper).

    A sample has at most one holder, which is the same in all epochs. An epoch uses each sample
    once, and a sample that goes to its holder is not loaded. So each sample with a holder saves one
    load in each epoch, and only the number of such samples matters. A node gets a sample that
    another node holds only in two cases: if the holder has reached the cap, or if a rank would
    otherwise have fewer than `least` samples.

    cap : the largest number of samples of a rank in a step, as a multiple of `batch_size`. A rank
        must have memory for this number of samples
    least : the smallest number of samples of a rank in a step. With 0, a batch may be empty, and
        losses must be summed (see `weight`)
    epoch_order : whether the epochs are put in the order in which the fewest samples are loaded
        (section 4.2 of the paper)
    epochs : the number of epochs, which `epoch_order` needs
    more : the other arguments of HeldSampler
    """

    EXTRA = False

    def __init__(
        self,
        files: Any,
        batch_size: int = 64,
        seed: int = 17,
        *,
        cap: float = 1.5,
        least: int = 1,
        epoch_order: bool = False,
        epochs: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(files, batch_size, seed, **more)
        if epoch_order and epochs is None:
            raise ConfigError("epochs: epoch_order needs the number of epochs; give epochs=")
        if epochs is not None and epochs < 1:
            raise ConfigError(f"epochs: {epochs} is out of range; write 1 or more")
        self.cap, self.least = cap, least
        self._may_be_empty = least == 0
        self._deal()
        if epoch_order:
            capacity = int(np.count_nonzero(self.holders[:, 0] != NONE))
            self._at = replace(self._at, epochs=epochs or 0, capacity=capacity)

    def _deal(self) -> Deal:
        ranks = self.ranks
        return Deal(self._at.per_step, ranks.world_size, ranks.nodes, self.cap, self.least)

    def _dealt_by(self) -> list[Any]:
        return [*super()._dealt_by(), self._deal()]

    def _dealt(self, order: Int32s) -> EpochSchedule:
        return self._deal().schedule(order, np.ascontiguousarray(self.holders[:, 0]))

    # --- the order of the epochs ----------------------------------------------------------------

    def _number(self, epoch: int) -> int:
        if epoch >= self._at.epochs:
            return epoch
        return int(self._path[0][epoch])

    @cached_property
    def _path(self) -> tuple[Ints, int, int]:
        """Three values: the numbers of the epochs in the best order, how many samples the training
        loads with the usual order of the epochs, and how many with the best order."""
        at, epochs = self._at, self._at.epochs
        sampler = DistributedSampler(at.length, at.ranks, at.seed, at.shuffle, at.drop_last)
        costs = edge_costs(
            lambda epoch: sampler.epoch(epoch).reshape(1, -1, 1), epochs, at.capacity, at.length
        )
        path = order_epochs(costs)
        before, after = path_cost(costs, np.arange(epochs)), path_cost(costs, path)
        log.info("with epoch_order, %d samples are loaded instead of %d", after, before)
        return path, before, after

    @property
    def saved(self) -> float:
        """The share of loads that the best order of the epochs saves, compared with the usual
        order; 0 without `epoch_order`. It is computed for nodes that keep the samples that they
        used last."""
        if not self._at.epochs:
            return 0.0
        _, before, after = self._path
        return 1 - after / before if before else 0.0

    def _take(self, state: State) -> None:
        super()._take(state)
        vars(self).pop("_path", None)

    # --- conditions for unequal batches ---------------------------------------------------------

    def check(self, model: Any) -> None:
        """Checks that a model works with unequal batches. Raises ConfigError if a layer of the
        model normalises over the batch of one rank.

        model : a torch.nn.Module
        """
        try:
            from torch.nn import SyncBatchNorm
            from torch.nn.modules.batchnorm import _BatchNorm
        except ImportError:
            raise ConfigError(
                "model: torch is not installed; pip install monarch-tiering[torch]"
            ) from None
        for name, layer in model.named_modules():
            if isinstance(layer, _BatchNorm) and not isinstance(layer, SyncBatchNorm):
                raise ConfigError(
                    f"model: {name or 'it'} is a {type(layer).__name__}, which normalises over one"
                    " rank's batch only; convert it with"
                    " torch.nn.SyncBatchNorm.convert_sync_batchnorm"
                )
