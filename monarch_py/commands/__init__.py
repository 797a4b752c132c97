"""What the commands do. Their arguments and what they print is cli's."""
