"""The scan of the sources into the catalog: what is listed, how fast, and when it is compared
again."""
