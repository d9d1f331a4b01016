"""The conformance cases, one folder a suite."""
