"""Which engine runs: a problem and a device become solvers in order, each with a configuration and the reason for it.

A new reason to refuse or to prefer goes to ``choice``, a new thing that this machine decides to ``decision_store``.
Records are in this zone because a choice reads them, while ``measurement``, one zone higher, makes them. May import
device and api.

- ``dispatch``: makes the first candidate's plan and runs it; where one fails, the next candidate's.
- ``choice``: the order of choice: rules, records, neighbours and lock files.
- ``decision_store``: what this machine decided, from process to process; read before anything is ranked.
- ``solver_query``: asks solvers, guarded, and caches what they answered.
- ``visible_problem``: the problem as a solver sees it, without the parts that it does not fuse.
- ``reach``: which problems no kernel is given, because of padding and strides far beyond the input.
- ``derivation``: derived solvers: a plugin's gaps filled by rewriting problems.
- ``prepared``: a plan with its workspace, packed weights and the passes for what its solver does not fuse.
- ``constants``: constant weights and their packed forms.
- ``layer_chain``: runs a plan through the layers that wrap it.
- ``layers``: the layers themselves: tracing and validation.
- ``async_compile``: the tier ``ready``: a general plan computes while the chosen one is compiled.
- ``planpack``: plan packs: decisions, programs and packed weights of a net in one file.
- ``plugins``: finds, loads and watches plugins; reads rules and errata.
- ``defensive_copy``: asks a plugin over copies of what it is handed, and sets it aside where it changes them.
- ``answer_child``: the child process in which unproven plugins are asked first.
- ``vendors``: vendors' shared libraries behind the C header, as plugins.
- ``records``: measurements as immutable records in files that processes share.
- ``explanation``: every solver's answer to a problem, for ``explain``.
- ``text_table``: tables for terminals and pipes.
"""
