"""Tracks programs' progress in access plans, assigns files to nodes, and fetches files early."""
