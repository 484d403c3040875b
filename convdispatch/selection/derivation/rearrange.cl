// target[t] = source[(t - B) / P] along each of six axes where that is whole and within N, and 0 elsewhere.
// E extent, T target stride, S source stride (elements), N source size, B before, P step; START first source element.
// ROWS 1: a work item copies a row of the last axis (CPU); 0: one element (GPU).  A part starts so many elements on.
#define FROM(number, t) (((t) - B##number) / P##number)
#define INSIDE(number, t) \
  ((t) >= B##number && (P##number == 1 || ((t) - B##number) % P##number == 0) && FROM(number, t) < N##number)

kernel void rearrange(global WORD *target, global const WORD *source, const long target_part,
                      const long source_part) {
  long rest = get_global_id(0);
#if !ROWS
  const int t5 = rest % E5; rest /= E5;
#endif
  const int t4 = rest % E4; rest /= E4;
  const int t3 = rest % E3; rest /= E3;
  const int t2 = rest % E2; rest /= E2;
  const int t1 = rest % E1;
  const int t0 = rest / E1;
  const int here = INSIDE(0, t0) && INSIDE(1, t1) && INSIDE(2, t2) && INSIDE(3, t3) && INSIDE(4, t4);
  target += target_part + (long)t0 * T0 + (long)t1 * T1 + (long)t2 * T2 + (long)t3 * T3 + (long)t4 * T4;
  source += source_part + START;
  if (here)  // a pointer far outside is not formed where nothing is read
    source += (long)FROM(0, t0) * S0 + (long)FROM(1, t1) * S1 + (long)FROM(2, t2) * S2 + (long)FROM(3, t3) * S3 +
              (long)FROM(4, t4) * S4;
#if ROWS
  for (int t5 = 0; t5 < E5; ++t5) {  // what lies outside is read at the nearest place: no masks for a compiler
    const WORD nearest = source[(long)clamp(FROM(5, t5), 0, N5 - 1) * S5];
    target[(long)t5 * T5] = here && INSIDE(5, t5) ? nearest : (WORD)0;
  }
#else
  target[(long)t5 * T5] = here && INSIDE(5, t5) ? source[(long)FROM(5, t5) * S5] : (WORD)0;
#endif
}
