"""What is filled: files that programs wait for, files that are filled ahead, and the orders of
both."""
