"""Policies: some from papers, some of our own. A policy decides which files are kept, where they
are kept, and in what order files are fetched.

For the simulator, every policy is a function from a job to a decision (`view.Policy`). The daemon
never knows a complete job in advance, so it calls the functions from which these policies are
built.
"""
