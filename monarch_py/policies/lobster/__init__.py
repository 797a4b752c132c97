"""Lobster (Liu et al., ICPP'22): threads shared between queues, and eviction by reuse.

Numbers in parentheses are sections of the paper. `preprocessing` models the time of preprocessing
as a function of the number of threads (4.1). `queues` models the time of each GPU's loading queue
(4.2), and divides the loading threads among the queues (4.3, Algorithm 1). `policy` keeps and drops
copies by three rules (4.4).
"""
