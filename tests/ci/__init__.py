"""What runs the hardware matrix: the files of `ci/`."""
