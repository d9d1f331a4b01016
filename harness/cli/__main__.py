"""``python -m harness.cli``: the `harness` command without its script."""

from harness.cli.main import main

main()
