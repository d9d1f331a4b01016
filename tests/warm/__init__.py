"""Test processes that start with pytest and the harness already imported.

A run of the harness costs one to three seconds of processor time before its first case, mostly for imports: in the
controller, in the zygote, and in each worker. Here one process, the server, imports once. The processes that tests
start are forks of it, which continue as ``python -m pytest`` would. They have their own session, descriptors,
environment, working folder and arguments. `tests/warm/test_warm.py` compares them with the processes that a user
starts.

Two things differ. Below pytest's frames, a stack has the server's frames, so the harness does not shorten it. And the
kernel shows the server's command line. Tests for which this matters request cold processes, with ``cold=True``. With
TESTS_COLD=1 in the environment all processes are cold, as in the nightly tests.
"""
