"""SOLAR (Sun et al., VLDB'22): rearranges epochs, samples and reads to fit what nodes hold.

Numbers in parentheses are sections of the paper. `epochs` chooses the order of the epochs (4.2).
`mapping` assigns the samples of a step to the nodes that hold them, and balances the loads (4.3).
`chunks` joins reads of neighbouring samples (4.4). `assignment` solves the assignment problem, for
`epochs`.
"""
