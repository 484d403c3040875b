"""Plugins and what is known of them: loading, registry rules and errata, verdicts of earlier runs."""
