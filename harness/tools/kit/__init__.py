"""A kit: one file to run the suites on a machine without network."""
