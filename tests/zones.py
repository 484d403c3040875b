"""Which zone a test file is about: the mark by which ``pytest -m ZONE`` runs it."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

ZONES = {
    "api": """
        activations
        docs*
        site
        errors
        types
        words
        package
        kernel_*
        layering
        problem
        settings
        quantized
        geometry
    """,
    "device": """
        binaries
        bounded_cache*
        many_sizes
        bridge
        bring_up
        commands*
        compiling
        cuda_*
        gemm*
        home
        host_*
        icd
        imports
        machine_code
        memory*
        platforms*
        process_end
        proven_checks
        template_cache
        ptx*
        rates
        recording*
        runtime
        shared_pool
        planning_lock
    """,
    "selection": """
        choices
        math_floor
        record_coverage
        derivation
        dispatch
        evidence
        explanation
        first_call
        guard*
        fuzz_files
        hostile_files
        hostile_records
        injection
        layers
        loader
        lockfile*
        neighbours
        packs
        async_compile
        perfdb
        planpack*
        preference*
        record
        registry
        sabotage*
        verdicts
        second_try
        far_geometry
        huge_problems
        validation*
    """,
    "measurement": """
        conformance*
        families
        find*
        fitting
        grammar*
        hostile_parsers
        kit*
        measure
        nonfinite
        mutants
        onnx_cases
        pack_keys
        reference
        search_*
        shapes
        verify_*
    """,
    "calls": """
        arrays*
        calls_*
        conv
        decision_cache
        conv_*
        interchange
        operands*
        array_libraries
        fast_path
        threads
    """,
    "nets": """
        hostile_nets
        inference*
        integer_norms
        integer_pools
        jax*
        models*
        nn
        nn_*
        onnx
        onnx_*
        tensor
        tensor_*
        torch*
        train
    """,
    "tools": """
        cluster*
        benchmark*
        page_*
        progress
        quiet
        rendered
        replay
        classify
        cli
        interrupts
        cli_*
        doctor*
        explain*
        self_test*
        tables
    """,
    "plugins": """
        amx*
        cudnn*
        depthwise_*
        fft_*
        im2col
        cpu_costs
        gpu_costs
        implicitgemm_*
        int8
        nvidia*
        oclgrind
        onednn*
        targets*
        vendor_*
        winograd_*
    """,
}
"""Names of test files without ``test_`` and ``.py``; a file belongs to the first zone that names it."""


@functools.cache
def zone_of(stem: str) -> str | None:
    """The zone of a test file, by its name without ``.py``; None where no zone lists it."""
    name = stem.removeprefix("test_")
    return next((zone for zone, globs in ZONES.items() if any(fnmatchcase(name, g) for g in globs.split())), None)
