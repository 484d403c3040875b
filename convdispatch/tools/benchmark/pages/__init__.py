"""The benchmark's output: a report becomes a page and tables in the terminal, a net's run a timeline.

A new picture is a function of ``plots`` and a section of ``page.html.mako``.

- ``page``: one HTML page, which loads nothing from elsewhere.
- ``plots``: the roofline as SVG.
- ``terminal``: tables in the terminal.
- ``compare``: two runs beside each other.
- ``timeline``: the timeline of one run of a net.
"""
