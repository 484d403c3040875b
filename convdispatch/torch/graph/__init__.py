"""Whole models: layers replaced in place, or traced or recorded, fused and run as an inference form."""
