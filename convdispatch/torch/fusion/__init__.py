"""Whole models: layers replaced in place, or traced, fused and run as an inference form."""
