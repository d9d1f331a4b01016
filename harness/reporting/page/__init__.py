"""The HTML report of a run: `model` (plain values), `timeline`, `data` (for the script), `document` (the bytes)."""
