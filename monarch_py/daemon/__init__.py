"""The daemon of one node and one session, cut by duty.

lifecycle   starting, detaching, stopping
server      the loop that does everything in turn, and the control socket beside it
shared      the segments that clients see
scanner     sources -> catalog
filler      what is wanted -> placement -> orders to the copy engine
engine      the copy engine, in C, as Python drives it
copies      what becomes of copies: made visible, recorded, dropped
keeper      copies of persistent tiers -> manifest
report      what `status` says
openfiles   who has which logical file open, from the kernel
"""
