"""The scan, which adds the sources' files to the catalog: its order, its pace, and the later
revalidation."""
