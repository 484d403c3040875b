"""The benchmark's output: a report becomes a page, tables in the terminal, and files.

A new picture is a function of ``plots`` and a section of ``page.html.mako``.

- ``page``: one HTML page, which loads nothing from elsewhere.
- ``plots``: the roofline, error against time, workspace against time, as SVG.
- ``terminal``: tables in the terminal.
- ``compare``: two runs beside each other.
- ``export``: CSV and JSON, and the timeline of one run of a net.
"""
