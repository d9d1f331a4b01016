"""Memory snapshots: recorded allocation history, and the pages and texts that torch makes from it."""
