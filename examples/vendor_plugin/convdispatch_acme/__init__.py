"""Acme's convolution plugin: 1x1 layers as a plain matrix product."""

from convdispatch.api import KernelPlan, Solver, hookimpl, rates


class Direct1x1(Solver):
    name = "acme.direct1x1"
    exact = True
    spreads_nonfinite = False
    fuses = frozenset({"bias"})
    dtypes = frozenset({"float32", "float64", "float16", "bfloat16"})

    def rejects(self, problem, device):
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        if problem.layout != "nchw":
            return f"nchw only, got {problem.layout}"
        if problem.g != 1:
            return f"no groups, got {problem.g}"
        kernel = (problem.kd, problem.kh, problem.kw)
        if kernel != (1, 1, 1):
            return f"1x1 only, got {kernel}"
        if {problem.sd, problem.sh, problem.sw} != {1} or problem.y_shape[2:] != problem.x_shape[2:]:
            return "stride 1 and no padding only"
        return f"1 image or more, got {problem.mb}" if problem.mb < 1 else None

    def configs(self, problem, device):
        preferred = 4 if device.type == "cpu" else 1
        return [{"block": block} for block in (preferred, *{1, 2, 4, 8} - {preferred})]

    def cost(self, problem, device, config):
        return problem.flops * 8 / config["block"] / rates(device).flops

    def workspace(self, problem, device, config):
        return 0

    def plan(self, context, problem, config):
        blocks = -(-problem.oc // config["block"])
        size = (problem.od * problem.oh * problem.ow, blocks, problem.mb)
        arguments = "x w y bias" if problem.bias else "x w y"
        launches = [("direct1x1", size, None, arguments)]
        return KernelPlan(context, __package__, "direct1x1.cl", problem, config, launches)


@hookimpl
def convdispatch_solvers():
    return [Direct1x1()]
