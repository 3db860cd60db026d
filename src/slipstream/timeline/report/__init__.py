"""What was found, for people and programs: the terminal, JSON, a page, a difference, Perfetto."""
