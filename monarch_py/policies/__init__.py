"""Policies of the papers and ours: what is kept where, what is fetched from where, in which order.

For the simulator, every policy is a function from a job to a decision (`view.Policy`). The
daemon, which never knows a whole job in advance, calls the functions behind these.
"""
