"""What a person runs: the command line and what stands behind it.

``cli`` holds a file a subcommand, ``doctor`` says what was found and how to mend it, ``benchmark`` sets solvers beside
ceilings and other libraries, ``classify`` names what a picture shows, ``progress`` tells what remains. A new peer goes
to ``benchmark``, a new subcommand to ``cli``.

May import everything below; nothing imports tools.
"""
