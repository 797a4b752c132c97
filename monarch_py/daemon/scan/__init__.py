"""From the sources to the catalog: what is listed, how fast, and when it is listed again."""
