"""What a daemon's status means to people and to monitoring: a summary, a live view, metrics."""
