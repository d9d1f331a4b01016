"""Notifies people of news in a run: webhooks, e-mail, GitHub issues, standard output."""
