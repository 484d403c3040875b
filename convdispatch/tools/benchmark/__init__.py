"""The per-layer benchmark: turns problems into times of every solver and of peers, and these into tables and a page.

``session`` measures one problem with the machinery of ``find``; ``peaks`` measures what the device can do at most, in
the same run; ``report`` holds what was measured and reads and writes it; ``summary`` and ``regret`` work out figures;
``terminal``, ``export`` and ``page`` show them. Nothing here has a timer of its own.
"""
