"""Plans made in child processes while calls go on: a problem goes in, its solver, texts and binaries come out.

- ``pool``: starts children, hands them problems in the order of the time that waits on them, and merges what they made,
  so that the process that asked only loads it.
- ``worker``: the child.
- ``progress_line``: a line on the terminal while much is left.
"""
