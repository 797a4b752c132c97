"""The scan of the sources into the catalog: its order, its pace, and the later revalidation."""
