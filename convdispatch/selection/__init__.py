"""Which engine runs: a problem and a device become solvers in order, each with a configuration and the reason for it.

``loader`` finds plugins, ``registry`` reads rules, ``asking`` is where a solver is asked, guarded. ``ranking`` is the
order of choice, from top to bottom; ``dispatch`` makes and runs the first choice's plan, and the next one's where it
fails. ``evidence`` and ``neighbours`` say what was measured of this problem or of one like it, ``lockfile`` what was
fixed, ``explanation`` all of it in words. ``derivation`` fills a plugin's gaps by rewriting problems, ``layers`` wrap
what runs. ``records`` keeps measurements: it stands here because a choice reads them, while ``measurement``, one zone
higher, makes them. A new reason to refuse or to prefer goes to ``ranking`` or ``evidence``.

May import device and api.
"""
