"""The daemon of one node and one session, with a module or package for each duty.

starting    starting the daemon's process from outside, and waiting for its end
lifecycle   the daemon's process, from its start to its end
control     the socket for commands, and their execution
server      the parts of the daemon, and the loop that runs each of them in turn
status      the answer to the command `status`
switches    whether a switch file exists
openfiles   which process has which file of a source open, and what serves the file
orphan      the end of an unused daemon that no command will end
plans       access plans: the programs' progress, where files are kept, what is fetched ahead
fill        what is filled, and in which order
nodes       which node keeps each file, how peers get copies, which nodes a fill asks
copies      the Python side of the copy engine; how copies are published and dropped
scan        listing the sources into the catalog
segments    the shared-memory segments that clients attach to
"""
