"""Policies, from papers and our own. A policy decides which files are kept, where they are kept,
and in what order files are fetched.

For the simulator, every policy is a function from a job to a decision (`view.Policy`). The daemon
never knows a whole job in advance, so it calls the functions from which these policies are built.
"""
