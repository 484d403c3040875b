## out = activation(v + bias + residual) [+ out] for one, two or four neighbours, and for a tile of the output.
##
## `shift` is the bias of the channels that v holds. RUN columns of a tile are stored together.
<%
wide = geometry.nhwc
tensor = geometry.target
o_h, o_w = geometry.tile
s_h, s_w = tensor.axes
T = f"ACC{o.width}"
extras = (f", {T} shift" if problem.bias else "") + (", global const REAL *residual" if problem.residual else "")
%>\
#include <convdispatch/epilogue.cl>
#include <convdispatch/vectors.cl>
% for n in sorted({1, o.width, o.width * o.run}):
inline void put${n}(global REAL *out, ACC${n} v${f", {f'ACC{n}' if wide else 'ACC'} shift" if problem.bias else ""}${", global const REAL *residual" if problem.residual else ""}) {
  EPILOGUE(ACC${n}, v, shift, LOAD${n}(residual), LOAD${n}(out))
  STORE${n}(out, v);
}
% endfor
% if not geometry.weights:

// One tile whose first element is (y, x) of the plane; `out` and `residual` point there.
inline void put_tile(global REAL *out${extras}, int y, int x, ${", ".join(f"{T} v{i}_{j}" for i in range(o_h) for j in range(o_w))}) {
% for i in range(o_h):
  ${f"if (y + {i} < {tensor.size[0]}) " if tensor.size[0] % o_h and i else ""}{
% for j in range(0, o_w, o.run):
<%
value = f"(ACC{o.run})({', '.join(f'v{i}_{j + lane}' for lane in range(o.run))})" if o.run > 1 else f"v{i}_{j}"
offset = i * s_h + j * s_w
given = [f"out + {offset}", value] + ["shift"] * problem.bias + [f"residual + {offset}"] * problem.residual
%>\
    ${f"if (x + {j} < {tensor.size[1]}) " if tensor.size[1] % o_w and j else ""}put${o.width * o.run}(${", ".join(given)});
% endfor
  }
% endfor
}
% endif
