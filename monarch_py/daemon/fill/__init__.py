"""What is to be filled: what programs wait for, what is filled ahead, and the orders of both."""
