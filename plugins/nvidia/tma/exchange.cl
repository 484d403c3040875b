// From two columns of each of four groups of eight to the eight columns of group ``lane % 4``; from two columns of each of
// two groups to four columns of group ``lane % 2``, the upper four for the upper two of four lanes.
inline void four(float *v, int lane, float a0, float a1, float b0, float b1) {
  const int odd = lane & 1;
  const float s0 = shuffle_xor(odd ? a0 : b0, 1), s1 = shuffle_xor(odd ? a1 : b1, 1);
  v[0] = odd ? s0 : a0, v[1] = odd ? s1 : a1, v[2] = odd ? b0 : s0, v[3] = odd ? b1 : s1;
}
#define FOUR(v, ...) four(v, lane, __VA_ARGS__)
inline void eight(float *v, int lane, float a0, float a1, float b0, float b1, float c0, float c1, float d0, float d1) {
  const int odd = lane & 1, high = lane & 2;
  // Neighbours exchange: even lanes keep groups 0 and 2, odd ones 1 and 3.
  const float s0 = shuffle_xor(odd ? a0 : b0, 1), s1 = shuffle_xor(odd ? a1 : b1, 1);
  const float s2 = shuffle_xor(odd ? c0 : d0, 1), s3 = shuffle_xor(odd ? c1 : d1, 1);
  const float k0 = odd ? b0 : a0, k1 = odd ? b1 : a1, k2 = odd ? d0 : c0, k3 = odd ? d1 : c1;
  const float near0 = odd ? s0 : k0, near1 = odd ? s1 : k1, near2 = odd ? k0 : s0, near3 = odd ? k1 : s1;
  const float far0 = odd ? s2 : k2, far1 = odd ? s3 : k3, far2 = odd ? k2 : s2, far3 = odd ? k3 : s3;
  // Then pairs of lanes: the lower keep groups 0 and 1, the upper 2 and 3.
  const float r0 = shuffle_xor(high ? near0 : far0, 2), r1 = shuffle_xor(high ? near1 : far1, 2);
  const float r2 = shuffle_xor(high ? near2 : far2, 2), r3 = shuffle_xor(high ? near3 : far3, 2);
  v[0] = high ? r0 : near0, v[1] = high ? r1 : near1, v[2] = high ? r2 : near2, v[3] = high ? r3 : near3;
  v[4] = high ? far0 : r0, v[5] = high ? far1 : r1, v[6] = high ? far2 : r2, v[7] = high ? far3 : r3;
}
#define EIGHT(v, ...) eight(v, lane, __VA_ARGS__)
