"""A kit: one file with which a machine without network runs the suites."""
