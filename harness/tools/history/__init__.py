"""Runs over nights in a database: `record` reads one, `store` keeps them, `answers` asks, `site` shows."""
