// NVFP4 products for few tokens on Hopper (sm_90a): Y[M, N] = alpha * X[M, K] W[N, K]^T, W4A4, M = 1 to 8.
//
// What binds it. At the rate at which an H200 reads memory an SM takes in about 32 weights of 9/16 byte a clock, so a
// scheduler has 32 issue slots for every 8 weights of each lane of a warp, and integer instructions take two each.
// Decoding to fp16 and scaling before the product fills them. What this does about it:
//   - E2M1 becomes E4M3 by bit moves (5 instructions for 8 codes), and fp8 wgmma multiplies 64 rows by 32 columns of K
//     for all tokens at once. Products of E2M1 codes and their sums over a block of 16 are exact in its accumulators.
//   - The scales of a block are applied to its sum, not to its 16 weights. A k = 32 wgmma holds two blocks; their sums
//     are kept apart by zeros on the token side, which costs nothing: 8 or 16 columns take wgmma the same time.
//   - The factor of each sum, scale of the weights times scale of the token, comes out of the tensor cores as well:
//     E4M3 is what they take. One more wgmma for a chunk multiplies its 8 scales a row by the tokens' scales, of which
//     each column has one, so a result is a single product and exact. It lies where the sum does that it belongs to,
//     and a sum costs one instruction. (Conversions and products of scales were a third of all that was issued. Zero
//     products do not count where the tensor cores align what they add: tests/gpu has factors of all magnitudes.)
//   - Weights are laid out in the order in which lanes take them ("tiles", resetcli/cuda/families/hopper.py), so every
//     copy is a straight 16 bytes a lane. Each warp streams its own part through a ring in shared memory with
//     cp.async: no barrier, no register held while waiting. (Reading by bulk copies took 0.8 to 1.4 us longer on an
//     H200, whatever the size. Plain loads into registers keep too few bytes in flight.)
//   - Activations are asked for before most weights: behind 100 KB of weights in flight they cost 1 to 1.6 us more. One
//     thread does it, by bulk copies. (These take uniform registers, so those of several lanes run one by one.
//     Quantizing activations here, in each CTA, was slower: nothing is left then to hide that arithmetic behind. So was
//     asking for all of the ring before the kernel ahead has ended.)
//   - All warps of an SM pass through what comes before the loop and after it at once, so an instruction there takes as
//     many clocks as a scheduler has warps: little comes before the first requests, and what does not need activations
//     is done while they are on their way.
// A cluster of CTAs takes some units of 16 rows, what a warp multiplies at once: rows are cut that finely because whole
// tiles of 64 leave a fifth of an H200 without work on common shapes. Each CTA takes one slice of K of all of them, so
// that it needs only a slice of the activations, and each of its warpgroups some quads of units or a slice of that
// slice, so that none waits for another before the end. In a last quad of fewer units some warps work for nothing,
// since wgmma takes all four; they are others in each warpgroup, for all schedulers to get the same work. The parts of
// a quad meet in the shared memory of one CTA of the cluster (st.async; plain stores where a CTA is alone), which adds
// them in a fixed order: results do not vary. (Equal runs of chunks over the whole grid, with parts through global
// memory, were slower.)
//
// What was traded: a layout of its own, M <= 8, N padded to 64 and K to 128 with zeros; shared memory, 1 KB for the
// factors of 128 columns of 8 tokens, so that K ends at some 62,000.
//
// The next kernel may launch at once or when a warpgroup of each CTA has no more products (see pdl): else the CTAs of
// kernels to come take memory and issue slots from the slowest of this one. Which is better differs between shapes.
//
// Compile-time: GROUPS warpgroups a CTA, STAGES of the ring, SPREAD 0 for M <= 4 and 1 for M <= 8, EARLY, BLOCKS.
#include "hopper.cuh"

#ifndef GROUPS
#define GROUPS 4
#endif
#ifndef STAGES
#define STAGES 6
#endif
#ifndef SPREAD
#define SPREAD 0
#endif
#ifndef EARLY
#define EARLY 2  // stages requested ahead of the activations
#endif
#ifndef BLOCKS
#define BLOCKS 1  // CTAs an SM
#endif
static_assert(GROUPS >= 2 && GROUPS <= 4 && EARLY <= STAGES, "GROUPS is 2 to 4, EARLY at most STAGES");
static constexpr u32 THREADS = 128 * GROUPS, CLEARING = THREADS - 32;
static constexpr u32 WARP_CHUNK = 1152;            // 16 rows x 128 columns: 1024 bytes of codes, 128 of scales
static constexpr u32 CHUNK = 4 * WARP_CHUNK;
static constexpr u32 WARP_RING = STAGES * WARP_CHUNK, RING = 4 * GROUPS * WARP_RING;
static constexpr u32 PART = SPREAD ? 2048 : 1024;  // bytes of sums that a CTA sends for a tile
static constexpr u32 FACTORS = SPREAD ? 64 : 32;   // of a row and a chunk: blocks x tokens
static constexpr float UNSCALE = 64.0f;            // of E2M1 read as E4M3

// A lane's part of a warp's chunk: two pieces of codes, and of the scales if `scales`.
DEVICE void copy_chunk_if(bool wanted, bool scales, u32 to, const u8* from) {
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %2, 0;\nsetp.ne.u32 q, %3, 0;\n"
      "@p cp.async.cg.shared.global [%0], [%1], 16;\n@p cp.async.cg.shared.global [%0+512], [%1+512], 16;\n"
      "@q cp.async.cg.shared.global [%0+1024], [%1+1024], 16;\n}" ::"r"(to),
      "l"(from), "r"((u32)wanted), "r"((u32)scales)
      : "memory");
}
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }  // to wgmma

// Keeps a value in a register: worked out again from the thread index in every turn, it would delay each load.
DEVICE u32 keep(u32 v) {
  u32 r;
  asm volatile("mov.u32 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
DEVICE void move_byte(u32 to, u32 from) {  // in shared memory
  asm volatile("{\n.reg .u32 v;\nld.shared.u8 v, [%1];\nst.shared.u8 [%0], v;\n}" ::"r"(to), "r"(from) : "memory");
}
DEVICE u64 descriptor(u32 low, u32 high) {
  u64 d;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(high));
  return d;
}

// Over one chunk, started together (`finish` waits for them): four wgmma m64nXk32 of codes, each into sums of its own,
// and one of scales, which makes the factors of these sums in the same places.
#define EACH4(CONSTRAINT, v, i) CONSTRAINT(v[i]), CONSTRAINT(v[i + 1]), CONSTRAINT(v[i + 2]), CONSTRAINT(v[i + 3])
#define EACH16(CONSTRAINT, v, i) \
  EACH4(CONSTRAINT, v, i), EACH4(CONSTRAINT, v, i + 4), EACH4(CONSTRAINT, v, i + 8), EACH4(CONSTRAINT, v, i + 12)
#define E4M3 ".f32.e4m3.e4m3 "
#if SPREAD
static constexpr int SUMS = 8;
DEVICE void start(float (&d)[32], float (&f)[32], const u32 (&a)[16], const u32 (&s)[4], u64 b0, u64 b1, u64 b2,
                  u64 b3, u64 bf) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %89, 0;\nwgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32" E4M3 "{%0,%1,%2,%3,%4,%5,%6,%7},{%64,%65,%66,%67},%84,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32" E4M3 "{%8,%9,%10,%11,%12,%13,%14,%15},{%68,%69,%70,%71},%85,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32" E4M3 "{%16,%17,%18,%19,%20,%21,%22,%23},{%72,%73,%74,%75},%86,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32" E4M3 "{%24,%25,%26,%27,%28,%29,%30,%31},{%76,%77,%78,%79},%87,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32" E4M3 "{%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},{%80,%81,%82,%83},%88,p,1,1;\n"
      "wgmma.commit_group.sync.aligned;\n}"
      : EACH16("=f", d, 0), EACH16("=f", d, 16), EACH16("=f", f, 0), EACH16("=f", f, 16)
      : EACH16("r", a, 0), EACH4("r", s, 0), "l"(b0), "l"(b1), "l"(b2), "l"(b3), "l"(bf), "r"(0)
      : "memory");
}
// The operands pass through, so that they are not overwritten before the wait.
DEVICE void finish(float (&d)[32], float (&f)[32], u32 (&a)[16], u32 (&s)[4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : EACH16("+f", d, 0), EACH16("+f", d, 16), EACH16("+f", f, 0), EACH16("+f", f, 16), EACH16("+r", a, 0),
                 EACH4("+r", s, 0)
               :: "memory");
}
#else
static constexpr int SUMS = 4;
DEVICE void start(float (&d)[16], float (&f)[16], const u32 (&a)[16], const u32 (&s)[4], u64 b0, u64 b1, u64 b2,
                  u64 b3, u64 bf) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %57, 0;\nwgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32" E4M3 "{%0,%1,%2,%3},{%32,%33,%34,%35},%52,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32" E4M3 "{%4,%5,%6,%7},{%36,%37,%38,%39},%53,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32" E4M3 "{%8,%9,%10,%11},{%40,%41,%42,%43},%54,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32" E4M3 "{%12,%13,%14,%15},{%44,%45,%46,%47},%55,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32" E4M3 "{%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
      "{%48,%49,%50,%51},%56,p,1,1;\n"
      "wgmma.commit_group.sync.aligned;\n}"
      : EACH16("=f", d, 0), EACH16("=f", f, 0)
      : EACH16("r", a, 0), EACH4("r", s, 0), "l"(b0), "l"(b1), "l"(b2), "l"(b3), "l"(bf), "r"(0)
      : "memory");
}
// The operands pass through, so that they are not overwritten before the wait.
DEVICE void finish(float (&d)[16], float (&f)[16], u32 (&a)[16], u32 (&s)[4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : EACH16("+f", d, 0), EACH16("+f", f, 0), EACH16("+r", a, 0), EACH4("+r", s, 0) :: "memory");
}
#endif

// Where a lane's sums lie among those of its warp: so that neither who writes nor who reads them meets in a bank.
DEVICE u32 part_place(u32 row, u32 pair) { return pair * 8 + (row + 2 * pair & 7); }

// A lane's sums of a tile to `place` in the shared memory of the cluster's CTA `owner`; its barrier `gate` counts them.
DEVICE void deliver(const float (&total)[SUMS], u32 place, u32 owner, u32 gate, bool shares) {
#if SPREAD
  const u32 v[4] = {__float_as_uint(total[0] + total[4]), __float_as_uint(total[1] + total[5]),
                    __float_as_uint(total[2] + total[6]), __float_as_uint(total[3] + total[7])};
  if (shares)
    send16(address_in(place, owner), v, address_in(gate, owner));
  else
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(place), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
#else
  const u32 v[2] = {__float_as_uint(total[0] + total[1]), __float_as_uint(total[2] + total[3])};
  if (shares)
    send8(address_in(place, owner), v, address_in(gate, owner));
  else
    asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(place), "r"(v[0]), "r"(v[1]) : "memory");
#endif
}

// The first CLEARING threads of the CTA clear `bytes`, a multiple of 16.
DEVICE void clear_run(u32 at, u32 bytes) {
  for (u32 o = threadIdx.x * 16; o < bytes; o += CLEARING * 16)
    asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(at + o), "r"(0) : "memory");
}

// weights  [tiles][chunks][4 warps][1152 bytes], layout "tiles"
// x        codes as E4M3, then scales as E4M3. SPREAD 0: [blocks][M][16 bytes, 16 zeros], [pairs of them][4 tokens][2];
//          SPREAD 1: first blocks of each 32 columns [pairs][M][16 bytes], second blocks the same, [blocks][8 tokens].
//          Scales of tokens beyond M are what they are: a token's column of wgmma never mixes with another's.
// y        [M, N] fp16 or bf16
// units    of 16 rows of a cluster, of all_units; the last one has what is left
// rank_bits  the cluster's CTAs, a power of two
// sliced   warpgroups, GROUPS / stride, that cut a CTA's slice of K between them; the others take other quads
// share, extra  chunks of a warpgroup's slice of K; one more for the first `extra` of them, counted over the cluster
// room     chunks of the longest slice of a CTA
// pdl      0: no programmatic dependent launch; 1: the next kernel may launch at once; 2: after the last products
//          (EARLY and LATE of the host)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    hopper_w4a4(const u8* __restrict__ weights, const u8* x, u16* y, float alpha, int n, int chunks, int m, int units,
                int all_units, int rank_bits, int sliced, int stride, int share, int extra, int room, int bf16,
                int pdl) {
#if HAS_CLUSTER
  extern __shared__ __align__(128) u8 shared[];
  const u32 tid = keep(threadIdx.x), lane = tid & 31, base = shared_address(shared);
  const int rank = blockIdx.x & ((1 << rank_bits) - 1), first_unit = (blockIdx.x >> rank_bits) * units;
  units = min(units, all_units - first_unit);
  // A warpgroup's first quad; its slice of K, numbered through the cluster.
  auto first_quad_of = [&](int g) { return GROUPS == 3 ? (stride == 1 ? 0 : g) : (int)((u32)(g * stride) / GROUPS); };
  auto slice_of = [&](int g) { return rank * sliced + g - first_quad_of(g) * sliced; };
  auto chunk_of = [&](int slice) { return slice * share + min(slice, extra); };
  auto length_of = [&](int slice) { return share + (slice < extra); };
  // Requests run ahead of the products: chunk by chunk, then on to this warp's unit in the warpgroup's next quad.
  const int its_group = tid >> 7, its_slice = slice_of(its_group), its_length = length_of(its_slice);
  const u32 ring_begin = keep(base + (tid >> 5) * WARP_RING + lane * 16), ring_end = ring_begin + WARP_RING;
  int wanted_unit = 4 * first_quad_of(its_group) + ((tid >> 5) - its_group & 3), in_quad = its_length;
  const int its_unit = first_unit + wanted_unit;
  const u8* from = weights + (size_t)(u32)((its_unit >> 2) * chunks + chunk_of(its_slice)) * CHUNK +
                   ((its_unit & 3) * WARP_CHUNK + lane * 16);
  const bool holds_scales = lane < 8;
  auto request = [&](u32 to) {
    const bool wanted = wanted_unit < units;
    copy_chunk_if(wanted, wanted && holds_scales, to, from);
    commit();
    in_quad--;
    from += in_quad == 0 ? (u32)((stride * chunks - its_length + 1) * CHUNK) : CHUNK;
    if (in_quad == 0) in_quad = its_length, wanted_unit += 4 * stride;
  };
  // Where a CTA keeps activations: codes; rows of 16 bytes for the factors' wgmma, FACTORS a chunk, which hold a
  // token's scale of block b in byte 4 (b/2) + b%2, where weights have theirs; and those scales as they came.
  const u32 gate = base + RING, x_there = gate + 8, scales_there = gate + 16, x_data = gate + 128;
  const u32 region = (SPREAD ? 64 : 256) * m * room, factors = x_data + (SPREAD ? 3 * region + 128 : region);
  const u32 token_scales = factors + 16 * FACTORS * room, received = token_scales + FACTORS * room;
  const int chunk0 = chunk_of(rank * sliced), x_length = chunk_of((rank + 1) * sliced) - chunk0;  // the CTA's slice
  const u32 scale_bytes = x_length * FACTORS;
#pragma unroll
  for (int s = 0; s < EARLY; s++) request(ring_begin + s * WARP_CHUNK);
  if (pdl == 1) let_next_launch();
  if (tid >= CLEARING) {  // one warp asks for activations
    if (lane == 0) {
      init_barrier(x_there, 1);
      init_barrier(scales_there, 1);
      publish_barriers();
    }
    asm volatile("bar.sync 1, 32;" ::: "memory");  // racecheck wants barriers made and used apart
    const u8 *codes = x + (size_t)chunk0 * (SPREAD ? 64 : 256) * m, *second = codes + (size_t)chunks * 64 * m;
    const u8* scales = x + (size_t)chunks * (SPREAD ? 128 : 256) * m + chunk0 * FACTORS;
    const u32 bytes = x_length * (SPREAD ? 64 : 256) * m;
    asm volatile("" ::"l"(codes), "l"(second), "l"(scales), "r"(bytes));  // worked out before the wait
    if (pdl) wait_for_previous();
    if (lane == 0) {
      arrive_expecting(scales_there, scale_bytes);
      bulk_copy(token_scales, scales, scale_bytes, scales_there);
      arrive_expecting(x_there, SPREAD ? 2 * bytes : bytes);
      bulk_copy(x_data, codes, bytes, x_there);
      if (SPREAD) bulk_copy(x_data + 2 * region, second, bytes, x_there);
    }
    __syncwarp();
  } else {
    if (SPREAD) clear_run(x_data + region, region);
    clear_run(factors, 16 * scale_bytes);
  }
  const int group = __shfl_sync(~0u, tid >> 7, 0), warp = __shfl_sync(~0u, tid >> 5, 0) & 3;  // uniform, for wgmma
  const int first_quad = first_quad_of(group), slice = slice_of(group), parts = sliced << rank_bits;
  const int chunk = chunk_of(slice), length = length_of(slice);
  const int quads = (units + 3) >> 2, of_quad = (warp - group) & 3;  // this warp's unit of each
  // Descriptors of wgmma: low word address and stride between the two blocks, high word stride between 8 columns,
  // all in 16 bytes. SPREAD 0: a row of zeros follows each token's; the second block is taken from one row earlier.
  // SPREAD 1: first blocks, as many zeros, second blocks: both strides are the same.
  const u32 x_low = ((x_data & 0x3FFFFu) >> 4) | (SPREAD ? region >> 4 : 2 * m - 1) << 16;
  const u32 x_high = SPREAD ? region >> 4 : 8, x_next = SPREAD ? m : 4 * m;
  const u32 f_low = (factors & 0x3FFFFu) >> 4, f_high = 8;
  const int ranks = 1 << rank_bits, mine = (quads - rank + ranks - 1) >> rank_bits;  // quads that meet here
  const bool shares = ranks > 1;
  if (shares && tid == 0) {
    init_barrier(gate, 1);
    publish_barriers();
  }
  float d[4 * SUMS], f[4 * SUMS];
  u32 a[16], s[4];
#pragma unroll
  for (int i = 0; i < 16; i++) a[i] = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = 0;
  {  // the first wgmma of a kernel takes long: let it be one that nobody waits for
    const u64 b = descriptor(x_low, x_high);
    start(d, f, a, s, b, b, b, b, descriptor(f_low, f_high));
    finish(d, f, a, s);
  }
  __syncthreads();  // all is cleared, the kernel ahead has ended, and activations are asked for
#pragma unroll
  for (int s = EARLY; s < STAGES; s++) request(ring_begin + s * WARP_CHUNK);
  wait_for(scales_there, 0);
  {  // scales into their rows: a warp's go to 32 banks
    const u32 of_64 = SPREAD ? (tid & 7) | (tid & 24) << 1 | (tid & 32) >> 2 : tid & 63;
    const u32 block = SPREAD ? of_64 >> 3 : (of_64 >> 2 & 6) | (of_64 & 1);
    const u32 to = factors + 4 * (block >> 1) + (block & 1);
#pragma unroll 4
    for (u32 i = (tid & ~63u) + of_64; i < scale_bytes; i += THREADS) move_byte(to + 16 * i, token_scales + i);
  }
  publish();
  __syncthreads();
  wait_for(x_there, 0);
  if (shares) {
    if (tid == 0) {
      const int met = 4 * mine - (((quads - 1) & (ranks - 1)) == rank ? 4 * quads - units : 0);
      arrive_expecting(gate, met * parts * (PART / 4));
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }

  const u32 to_scales = keep(1024 - lane * 12), skipped = chunk - chunk0, row = lane >> 2, t = lane & 3;
  const u32 first_x = x_low + skipped * 4 * x_next, first_f = f_low + skipped * FACTORS;
  u32 slot_now = ring_begin;  // this lane's 16 bytes
  u32 x_at = first_x, f_at = first_f;
  int turn = length, quad = first_quad;
  bool unmet = shares;  // by the cluster's other CTAs
  float total[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; i++) total[i] = 0.0f;

  u32 w[8], scales;
  auto take = [&]() {  // a chunk out of the ring
    const uint4 w0 = shared16(slot_now), w1 = shared16(slot_now + 512);
    w[0] = w0.x, w[1] = w0.y, w[2] = w0.z, w[3] = w0.w, w[4] = w1.x, w[5] = w1.y, w[6] = w1.z, w[7] = w1.w;
    scales = shared4(slot_now + to_scales);
  };
  auto decode = [&]() {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      a[4 * j] = first_four(w[2 * j]);
      a[4 * j + 1] = first_four(w[2 * j + 1]);
      a[4 * j + 2] = second_four(w[2 * j]);
      a[4 * j + 3] = second_four(w[2 * j + 1]);
    }
    s[0] = scales & 0xFFFFu, s[1] = scales >> 16;
  };
  wait_copies<STAGES - 1>();
  __syncwarp();
  take();
  decode();
  while (quad < quads) {
    start(d, f, a, s, descriptor(x_at, x_high), descriptor(x_at + x_next, x_high),
          descriptor(x_at + 2 * x_next, x_high), descriptor(x_at + 3 * x_next, x_high), descriptor(f_at, f_high));
    request(slot_now);
    slot_now += WARP_CHUNK;
    if (slot_now == ring_end) slot_now = ring_begin;
    wait_copies<STAGES - 1>();
    __syncwarp();
    take();
    finish(d, f, a, s);
    // A warp without work adds what its ring happens to hold, and hands it over to nobody.
#pragma unroll
    for (int i = 0; i < 4 * SUMS; i++) total[i % SUMS] = fmaf(d[i], f[i], total[i % SUMS]);
    decode();
    x_at += 4 * x_next;
    f_at += FACTORS;
    if (--turn) continue;
    // Barriers and shared memory of the whole cluster must exist before anything is sent.
    if (unmet) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    unmet = false;
    const u32 held = of_quad * 32 + part_place(row, t);
    const u32 place = received + ((quad >> rank_bits) * parts + slice) * PART + held * (PART / 128);
    if (4 * quad + of_quad < units) deliver(total, place, quad & (ranks - 1), gate, shares);
#pragma unroll
    for (int i = 0; i < SUMS; i++) total[i] = 0.0f;
    turn = length;
    quad += stride;
    x_at = first_x;
    f_at = first_f;
  }
  if (pdl == 2) let_next_launch();
  if (unmet) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");

  const float scale = alpha * UNSCALE;
  if (shares)
    wait_for_cluster(gate, 0);
  else
    __syncthreads();
  // 256 threads write a quad; a warp takes 16 rows of Y^T, a unit's, and 4 tokens (SPREAD 0: 2): whole sectors.
  constexpr int AT_ONCE = THREADS / 256;
  if (tid >= 256 * AT_ONCE) return;
  const int column = tid & 15, pair = tid >> 4 & 3, its_first = tid >> 8;
  const u32 entry = (tid >> 6 & 3) * 32 + part_place(column & 7, pair);
  u32 at = received + its_first * parts * PART + entry * (PART / 128) + (column >> 3) * (PART / 256);
  int of_cluster = 4 * (rank + its_first * ranks) + (tid >> 6 & 3);
  const int token = SPREAD ? 2 * pair : pair;
  u16* to = y + (size_t)token * n + (first_unit + of_cluster) * 16 + column;
  const bool first = token < m, second = SPREAD && token + 1 < m;
  int rows_left = n - (first_unit + of_cluster) * 16 - column;
  for (int q = its_first; q < mine; q += AT_ONCE) {
    float sum = 0.0f, next = 0.0f;
    for (int r = 0; r < parts; r++, at += PART) {
#if SPREAD
      const uint2 both = shared8(at);
      sum += __uint_as_float(both.x), next += __uint_as_float(both.y);
#else
      sum += __uint_as_float(shared4(at));
#endif
    }
    sum *= scale, next *= scale;
    const bool inside = of_cluster < units && rows_left > 0;
    if (inside && first) to[0] = bf16 ? float_to_bf16(sum) : float_to_half(sum);
    if (inside && second) to[n] = bf16 ? float_to_bf16(next) : float_to_half(next);
    at += (AT_ONCE - 1) * parts * PART;
    of_cluster += 4 * AT_ONCE * ranks;
    rows_left -= 64 * AT_ONCE * ranks;
    to += 64 * AT_ONCE * ranks;
  }
#endif
}
