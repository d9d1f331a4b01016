"""Processes of tests that begin with pytest and the harness imported.

A run of the harness costs one to three seconds of processor time before its first case, most of it for imports: in the
controller, in the zygote, and in each worker. Here one process, the server, imports once. What the tests start are
forks of it, which go on as ``python -m pytest`` would. They have everything else of their own: session, descriptors,
environment, working folder and arguments. `tests/warm/test_warm.py` compares them with what a user starts.

Two things differ. Below the frames of pytest a stack has those of the server, so the harness does not shorten it. And
the kernel shows the command line of the server. Tests of these ask for cold processes, by ``cold=True``. With
TESTS_COLD=1 in the environment all processes are cold: so they run each night.
"""
