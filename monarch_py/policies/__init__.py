"""What is kept where, what is fetched from where, in which order: policies of the papers and ours.

Every policy is a small class with one method, `decide` (`view.Policy`), for the simulator. The
daemon, which never has a whole job before it, calls the functions that these classes are made of.
"""
