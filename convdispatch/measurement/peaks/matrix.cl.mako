// Sums of products of ones on matrix units, in ${chains} independent chains: each element grows by ${k} a step.
<%
    a_count, b_count = (4, 2)
    a = ", ".join(f"%{4 + i}" for i in range(a_count))
    b = ", ".join(f"%{4 + a_count + i}" for i in range(b_count))
%>
kernel void matrix(global float *out) {
  // Not a constant to the compiler: it could fold the sums otherwise.
  uint one = get_global_size(0) ? ${ones}u : 0u;
% for i in range(chains):
  float s${i}0 = 0, s${i}1 = 0, s${i}2 = 0, s${i}3 = 0;
% endfor
  for (int step = 0; step < ${steps}; ++step) {
% for i in range(chains):
    asm volatile("mma.sync.aligned.m16n8k${k}.row.col.f32.${kind}.${kind}.f32 {%0, %1, %2, %3}, {${a}}, {${b}}, {%0, %1, %2, %3};"
                 : "+f"(s${i}0), "+f"(s${i}1), "+f"(s${i}2), "+f"(s${i}3)
                 : ${", ".join(['"r"(one)'] * (a_count + b_count))});
% endfor
  }
  out[get_global_id(0)] = ${" + ".join(f"s{i}0" for i in range(chains))};
}
