"""Presents a daemon's status to people (summaries, a page, a live view) and to monitoring tools."""
