"""The daemon of one node and one session, with a module or package for each duty.

starting    starts the daemon's process from outside, and waits for its end
lifecycle   runs the daemon's process, from its start to its end
control     receives commands at a socket, and executes them
server      holds the parts of the daemon, and runs each of them in turn, in a loop
status      answers the command `status`
switches    looks for the switch file, with which a user or administrator turns Monarch off
openfiles   lists the open files of the sources: which process has each file open, and whether the
            source or a copy serves it
orphan      ends a daemon that no process uses and that no command will stop
plans       follows access plans: notes the programs' progress, decides where files are kept, and
            fetches files before programs open them
fill        chooses which files are filled, and in which order
nodes       decides which node keeps each file, chooses the nodes from which a file is fetched, and
            sends copies to other nodes
copies      sends orders to the copy engine; publishes and drops copies
scan        adds the files of the sources to the catalog
segments    creates the shared-memory segments that clients attach to
"""
