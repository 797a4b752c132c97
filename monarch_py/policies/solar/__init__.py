"""SOLAR (Sun et al., VLDB'22): epochs, samples and reads rearranged around what nodes hold.

`epochs` orders whole epochs (4.2), `mapping` deals the samples of a step to the nodes that hold
them and balances what is left to load (4.3), `chunks` joins reads of neighbours (4.4), `assignment`
is the bound that the order of epochs is measured by.
"""

from monarch_py.policies.solar.policy import Solar

__all__ = ["Solar"]
