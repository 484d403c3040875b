"""Normalisation: by batch, by group, by neighbours."""
