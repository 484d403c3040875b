## Sixteen vectors of sixteen words transposed in registers, by four rounds in which halves interleave.
#define RISE_(a, b) (uint16)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3, a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7)
#define FALL_(a, b) (uint16)(a.s8, b.s8, a.s9, b.s9, a.sa, b.sa, a.sb, b.sb, a.sc, b.sc, a.sd, b.sd, a.se, b.se, a.sf, b.sf)
// v[i].s[j] and v[j].s[i] are exchanged.
inline void transpose(uint16 *v) {
  for (int round = 0; round < 4; ++round) {
    uint16 t[16];
% for i in range(8):
    t[${2 * i}] = RISE_(v[${i}], v[${i + 8}]), t[${2 * i + 1}] = FALL_(v[${i}], v[${i + 8}]);
% endfor
% for i in range(16):
    v[${i}] = t[${i}];
% endfor
  }
}
