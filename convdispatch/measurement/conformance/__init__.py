"""The kit that a vendor runs against its plugin: every case refused in words, or computed right.

``convdispatch verify PLUGIN`` and ``pytest --pyargs convdispatch.conformance --plugin NAME`` run the same cases through
the same checks. Nothing here is imported by a caller or a plugin.
"""
