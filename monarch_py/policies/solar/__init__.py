"""SOLAR (Sun et al., VLDB'22): rearranges epochs, samples and reads to fit what nodes hold.

`epochs` orders whole epochs (4.2). `mapping` assigns the samples of a step to the nodes that hold
them and balances the loads (4.3). `chunks` joins reads of neighbouring samples (4.4). `assignment`
computes the lower bound that orders of epochs are compared with.
"""
