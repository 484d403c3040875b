"""Plugins: installed modules and libraries become solvers, rules and a report of those that did not load.

A new key of ``registry.yaml`` goes to ``registry``, a new condition of ``when`` to ``conditions``.

- ``loader``: finds plugins and layers, and loads each in a guard of its own.
- ``contract``: what a module must provide to count as a plugin.
- ``registry``: reads ``registry.yaml``: rules, families, blocks.
- ``errata``: reads ``errata.yaml``: kernels that compute wrongly, where, and until which version.
- ``conditions``: the conditions of a rule's ``when``.
- ``verdicts``: what plugins did on this machine, from process to process.
- ``answer_trial``: asks unproven plugins in a child process first, and watches for hangs.
"""
