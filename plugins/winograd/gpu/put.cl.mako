## out = activation(v + bias + residual) [+ out] for one, two or four neighbours; a bias is theirs alone or all of theirs.
<% wide = walk.nhwc %>\
% for n in (1, 2, 4):
<% T = f"ACC{n}" %>\
inline void put${n}(global REAL *out, ${T} v${f", {T if wide else 'ACC'} shift" if problem.bias else ""}${", global const REAL *residual" if problem.residual else ""}) {
% if problem.bias:
  v += shift;
% endif
% if problem.residual:
  v += LOAD${n}(residual);
% endif
  v = ACTIVATION(${T}, v);
% if problem.accumulate:
  v += LOAD${n}(out);
% endif
  STORE${n}(out, v);
}
% endfor
