"""Tracks programs' progress in access plans, places the plans' files, and fetches files ahead."""
