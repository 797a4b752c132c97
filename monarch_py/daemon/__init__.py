"""The daemon of one node and one session, cut by duty.

lifecycle   starting, detaching, stopping
server      the loop that does everything in turn, and the control socket beside it
status      what `status` says
openfiles   who has which logical file open, from the kernel
plans       access plans: how far programs are, what is kept where, what is fetched ahead
fill        what is to be filled, and in which order
nodes       which node keeps which file, what this one gives, whom a fill asks
copies      the copy engine, in C, as Python drives it, and what becomes of copies
scan        sources -> catalog
segments    the segments that clients see
"""
