"""The daemon of one node and one session, one module or package for each duty.

lifecycle   starting, detaching, stopping
control     the socket on which commands come, and what the daemon does for them
server      the parts of the daemon, and the loop in which they have their turns
status      the answer to `status`
switches    whether a switch file exists
openfiles   which process has which logical file open, from the kernel
orphan      the end of a daemon whose `monarch run` was killed
plans       access plans: how far programs are, what is kept where, what is fetched ahead
fill        what is filled, and in which order
nodes       which node keeps which file, what this node serves, which node a fill asks
copies      the copy engine, in C, as Python drives it; publishing and dropping copies
scan        listing the sources into the catalog
segments    the segments that clients see
"""
