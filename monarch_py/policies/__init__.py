"""Policies, from papers and our own: they decide what is kept and fetched, where, in what order.

For the simulator, every policy is a function from a job to a decision (`view.Policy`). The daemon
never knows a whole job in advance, so it calls the functions from which these policies are built.
"""
