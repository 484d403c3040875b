"""Plans made in child processes while calls go on: a problem goes in, its solver, texts and binaries come out.

``worker`` is the child; ``pool`` starts children, hands them problems in the order of the time that waits on them, and
merges what they made, so that the process that asked only loads it.
"""
