"""What is kept where, what is fetched from where, in which order: policies of the papers and ours.

Every policy is a small class with one method, `decide` (`view.Policy`). The simulator and the
daemon use the same classes.
"""
