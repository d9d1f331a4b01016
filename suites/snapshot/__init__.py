"""Memory snapshots: recorded allocation history, and the pages and texts made from it."""
