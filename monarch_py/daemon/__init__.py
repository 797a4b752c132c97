"""The daemon of one node and one session, with a module or package for each duty.

starting    starting the daemon's process from outside, and waiting for its end
lifecycle   the daemon's process, from its start to its end
control     the socket for commands, and their execution
server      the parts of the daemon, and the loop that runs each of them in turn
status      the answer to the command `status`
switches    looks for the switch file, with which a user or administrator turns Monarch off
openfiles   lists the open files of the sources: which process has each of them open, and whether
            the source or a copy serves it
orphan      ends a daemon that no process uses and that no command will stop
plans       access plans: the programs' progress, where files are kept, what is fetched ahead
fill        which files are filled, and in which order
nodes       which node keeps each file, how peers get copies, which nodes are asked for a file
copies      the Python side of the copy engine; how copies are published and dropped
scan        listing the sources into the catalog
segments    the shared-memory segments that clients attach to
"""
