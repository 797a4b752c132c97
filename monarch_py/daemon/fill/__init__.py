"""What is filled, and in which order: files that programs wait for, and files filled ahead."""
