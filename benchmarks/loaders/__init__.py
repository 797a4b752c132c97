"""What loaders do for training programs that may be changed, beside what they are compared with."""
