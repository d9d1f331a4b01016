"""Questions over many runs: history, matrix, diff, notify, devices, and the import of other tools' results."""
