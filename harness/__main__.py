"""``python -m harness``: the `harness` command without its script."""

from harness.cli.main import main

main()
