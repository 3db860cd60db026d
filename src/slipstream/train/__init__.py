"""Trains a NextN head for a target model on the target's own answers."""
