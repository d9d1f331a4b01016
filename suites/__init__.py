"""The conformance cases, one folder per suite."""
