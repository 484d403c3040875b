"""Plans problems in child processes while calls go on: a problem goes in, its solver, texts and binaries come out.

- ``pool``: starts children, passes them problems, those of longest run time first, and collects their artifacts, so
  that this process only loads them.
- ``worker``: the child process.
- ``progress_line``: a line on the terminal while many problems are left.
"""
