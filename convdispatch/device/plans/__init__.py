"""Plans made of steps."""
