"""Tell people what is new in a run: webhooks, e-mail, GitHub issues, standard output."""
