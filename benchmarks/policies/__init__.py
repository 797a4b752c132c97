"""What the policies reach, beside what the literature promises (see __main__.py)."""
