"""Runs over nights in a database: `record` reads a run, `store` keeps runs, `answers` has queries, `site` pages."""
