// NVFP4 products for few tokens on Hopper (sm_90a): Y[M, N] = alpha * X[M, K] W[N, K]^T, W4A4, M = 1 to 8.
//
// What binds it. At the rate at which an H200 reads memory an SM takes in about 32 weights of 9/16 byte a clock, so a
// scheduler has 32 issue slots for every 8 weights of each lane of a warp, and integer instructions take two each.
// Decoding to fp16 and scaling before the product fills them. What this does about it:
//   - E2M1 becomes E4M3 by bit moves (5 instructions for 8 codes), and fp8 wgmma multiplies 64 rows by 32 columns of K
//     for all tokens at once. Products of E2M1 codes and their sums over a block of 16 are exact in its accumulators.
//   - The scales of a block are applied to its sum, not to its 16 weights. A k = 32 wgmma holds two blocks; their sums
//     are kept apart by zeros on the token side, which costs nothing: 8 or 16 columns take wgmma the same time.
//   - Weights are laid out in the order in which lanes take them ("tiles", resetcli/cuda/families/hopper.py), so every
//     copy is a straight 16 bytes a lane. Each warp streams its own part through a ring in shared memory with
//     cp.async: no barrier, no register held while waiting. (Reading by bulk copies took 0.8 to 1.4 us longer on an
//     H200, whatever the size. Plain loads into registers keep too few bytes in flight.)
//   - Activations are copied before most weights: behind 100 KB of weights in flight they cost 1 to 1.6 us more. For
//     more than 4 tokens one thread may ask for them by bulk copies instead (BULK), which is faster behind a kernel that
//     has just made them on most shapes. (It must be one thread: these instructions take uniform registers, so those
//     of several lanes run one by one. Quantizing activations here, in each CTA, was slower: nothing is left then to
//     hide that arithmetic behind. So was asking for all of the ring before the kernel ahead has ended.)
//   - While wgmma multiplies a chunk, the next one is decoded.
// A cluster of CTAs takes some units of 16 rows, what a warp multiplies at once: rows are cut that finely because whole
// tiles of 64 leave a fifth of an H200 without work on common shapes. Each CTA takes one slice of K of all of them, so
// that it needs only a slice of the activations, and each of its warpgroups some quads of units or a slice of that
// slice, so that none waits for another before the end. In a last quad of fewer units some warps work for nothing,
// since wgmma takes all four; they are others in each warpgroup, for all schedulers to get the same work. The parts of
// a quad meet in the shared memory of one CTA of the cluster (st.async; plain stores where a CTA is alone), which adds
// them in a fixed order: results do not vary. (Equal runs of chunks over the whole grid, with parts through global
// memory, were slower.)
//
// What was traded: a layout of its own, M <= 8, N padded to 64 and K to 128 with zeros.
//
// The next kernel may launch at once or when a warpgroup of each CTA has no more products (see pdl): else the CTAs of
// kernels to come take memory and issue slots from the slowest of this one. Which is better differs from shape to shape.
//
// Compile-time: GROUPS warpgroups a CTA, STAGES of the ring, SPREAD 0 for M <= 4 and 1 for M <= 8, EARLY, BLOCKS, BULK.
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
#ifndef BULK
#define BULK 0  // activations by bulk copies
#endif
#if BULK && !SPREAD
#error "activations of few tokens come by plain copies"
#endif

static constexpr u32 THREADS = 128 * GROUPS;
static constexpr u32 WARP_CHUNK = 1152;            // 16 rows x 128 columns: 1024 bytes of codes, 128 of scales
static constexpr u32 CHUNK = 4 * WARP_CHUNK;
static constexpr u32 WARP_RING = STAGES * WARP_CHUNK, RING = 4 * GROUPS * WARP_RING;
static constexpr u32 PART = SPREAD ? 2048 : 1024;  // bytes of sums that a CTA sends for a tile
static constexpr float UNSCALE = 256.0f;           // 2^6 of E2M1 read as E4M3, 2^2 kept off the activation scales

DEVICE void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
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
DEVICE void unpack(u32 (&to)[4], uint4 v) { to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w; }
DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }  // to wgmma
DEVICE float low_float(u32 pair) { return half_to_float((u16)pair); }
DEVICE float high_float(u32 pair) { return half_to_float((u16)(pair >> 16)); }

// Keeps a value in a register: worked out again from the thread index in every turn, it would delay each load.
DEVICE u32 keep(u32 v) {
  u32 r;
  asm volatile("mov.u32 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
DEVICE u64 descriptor(u32 low, u32 high) {
  u64 d;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(high));
  return d;
}

// Four wgmma m64nXk32 over one chunk, each into sums of its own, are started; `finish` waits for them.
#if SPREAD
static constexpr int SUMS = 8;
DEVICE void start(float (&d)[32], const u32 (&a)[16], u64 b0, u64 b1, u64 b2, u64 b3) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %52, 0;\nwgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7},{%32,%33,%34,%35},%48,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%8,%9,%10,%11,%12,%13,%14,%15},{%36,%37,%38,%39},%49,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%16,%17,%18,%19,%20,%21,%22,%23},{%40,%41,%42,%43},%50,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%24,%25,%26,%27,%28,%29,%30,%31},{%44,%45,%46,%47},%51,p,1,1;\n"
      "wgmma.commit_group.sync.aligned;\n}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
        "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
        "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
        "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(a[8]),
        "r"(a[9]), "r"(a[10]), "r"(a[11]), "r"(a[12]), "r"(a[13]), "r"(a[14]), "r"(a[15]), "l"(b0), "l"(b1),
        "l"(b2), "l"(b3), "r"(0)
      : "memory");
}
// Both decoded chunks pass through, so that neither is overwritten before nor worked out after the wait.
DEVICE void finish(float (&d)[32], u32 (&a)[16], u32 (&next)[16]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
                 "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
                 "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
                 "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]),
                 "+r"(a[4]), "+r"(a[5]), "+r"(a[6]), "+r"(a[7]), "+r"(a[8]), "+r"(a[9]), "+r"(a[10]),
                 "+r"(a[11]), "+r"(a[12]), "+r"(a[13]), "+r"(a[14]), "+r"(a[15]), "+r"(next[0]), "+r"(next[1]),
                 "+r"(next[2]), "+r"(next[3]), "+r"(next[4]), "+r"(next[5]), "+r"(next[6]), "+r"(next[7]),
                 "+r"(next[8]), "+r"(next[9]), "+r"(next[10]), "+r"(next[11]), "+r"(next[12]), "+r"(next[13]),
                 "+r"(next[14]), "+r"(next[15])
               :: "memory");
}
#else
static constexpr int SUMS = 4;
DEVICE void start(float (&d)[16], const u32 (&a)[16], u64 b0, u64 b1, u64 b2, u64 b3) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %36, 0;\nwgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3},{%16,%17,%18,%19},%32,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%4,%5,%6,%7},{%20,%21,%22,%23},%33,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%8,%9,%10,%11},{%24,%25,%26,%27},%34,p,1,1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%12,%13,%14,%15},{%28,%29,%30,%31},%35,p,1,1;\n"
      "wgmma.commit_group.sync.aligned;\n}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
        "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(a[8]),
        "r"(a[9]), "r"(a[10]), "r"(a[11]), "r"(a[12]), "r"(a[13]), "r"(a[14]), "r"(a[15]), "l"(b0), "l"(b1),
        "l"(b2), "l"(b3), "r"(0)
      : "memory");
}
// Both decoded chunks pass through, so that neither is overwritten before nor worked out after the wait.
DEVICE void finish(float (&d)[16], u32 (&a)[16], u32 (&next)[16]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
                 "+f"(d[15]), "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]), "+r"(a[4]), "+r"(a[5]),
                 "+r"(a[6]), "+r"(a[7]), "+r"(a[8]), "+r"(a[9]), "+r"(a[10]), "+r"(a[11]), "+r"(a[12]),
                 "+r"(a[13]), "+r"(a[14]), "+r"(a[15]), "+r"(next[0]), "+r"(next[1]), "+r"(next[2]),
                 "+r"(next[3]), "+r"(next[4]), "+r"(next[5]), "+r"(next[6]), "+r"(next[7]), "+r"(next[8]),
                 "+r"(next[9]), "+r"(next[10]), "+r"(next[11]), "+r"(next[12]), "+r"(next[13]), "+r"(next[14]),
                 "+r"(next[15])
               :: "memory");
}
#endif

// A lane's sums of a tile to `place` in the shared memory of the cluster's CTA `owner`, whose barrier `gate` counts them.
DEVICE void deliver(const float (&total)[SUMS], u32 place, u32 owner, u32 gate, bool shares) {
#if SPREAD
  const u32 v[4] = {__float_as_uint(total[0] + total[4]), __float_as_uint(total[1] + total[5]),
                    __float_as_uint(total[2] + total[6]), __float_as_uint(total[3] + total[7])};
  if (shares)
    send16(address_in(place, owner), v, address_in(gate, owner));
  else
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(place), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
#else
  const u32 v[2] = {__float_as_uint(total[0] + total[1]), __float_as_uint(total[2] + total[3])};
  if (shares)
    send8(address_in(place, owner), v, address_in(gate, owner));
  else
    asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(place), "r"(v[0]), "r"(v[1]) : "memory");
#endif
}

// All threads of the CTA copy `bytes`, a multiple of 16.
DEVICE void copy_run(u32 to, const u8* from, u32 bytes) {
  for (u32 o = threadIdx.x * 16; o < bytes; o += THREADS * 16) copy16(to + o, from + o);
}

// weights  [tiles][chunks][4 warps][1152 bytes], layout "tiles"
// x        SPREAD 0: [chunks], each [8 blocks][M][16 bytes E4M3, 16 zeros] and scales [4 tokens][4] half2;
//          SPREAD 1: first blocks of each 32 columns, last first: [4 chunks][M][16], second blocks, first first, then
//          scales [chunks][8 tokens][4] half2. A half2 holds the scales of two neighbouring blocks, times 1/4.
// y        [M, N] fp16 or bf16
// units    of 16 rows of a cluster; the last one has `last_units`
// sliced   warpgroups, a divisor of GROUPS, that cut a CTA's slice of K between them; the others take other quads
// per_sliced, per_stride  1/sliced in 256ths and sliced/GROUPS in 65536ths, rounded up: divisions take long
// share, extra  chunks of a warpgroup's slice of K; one more for the first `extra` of them, counted over the cluster
// pdl      0: no programmatic dependent launch; 1: the next kernel may launch at once; 2: after the last products (EARLY and LATE of the host)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    hopper_w4a4(const u8* __restrict__ weights, const u8* x, u16* y, float alpha, int n, int chunks, int m, int units,
                int last_units, int sliced, int per_sliced, int per_stride, int share, int extra, int bf16, int pdl) {
#if HAS_CLUSTER
  extern __shared__ __align__(128) u8 shared[];
  u32 rank, ranks;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
  const u32 rank_bits = 31 - __clz(ranks), cluster = blockIdx.x >> rank_bits, clusters = gridDim.x >> rank_bits;
  const u32 tid = keep(threadIdx.x), lane = tid & 31, row = lane >> 2, t = lane & 3;
  const int group = __shfl_sync(~0u, tid >> 7, 0), warp = __shfl_sync(~0u, (tid >> 5) & 3, 0);
  // Slices of K are numbered through the cluster; chunk and length are this warpgroup's, x_chunk0 and x_length the CTA's.
  const int first_quad = group * per_sliced >> 8, stride = GROUPS * per_sliced >> 8;
  const int slice = rank * sliced + group - first_quad * sliced, parts = ranks * sliced;
  const int chunk = slice * share + min(slice, extra), length = share + (slice < extra);
  const int begins = rank * sliced, chunk0 = begins * share + min(begins, extra);
  const int x_length = sliced * share + max(0, min(extra - begins, sliced));
  const int first_unit = cluster * units;
  if (cluster + 1 == clusters) units = last_units;
  const int quads = (units + 3) / 4, slot = (warp - group) & 3;

  const u32 base = shared_address(shared);
  const u32 ring_begin = keep(base + (group * 4 + warp) * WARP_RING + lane * 16), ring_end = ring_begin + WARP_RING;
  const int of_quads = 4 * first_quad + slot, unit = first_unit + of_quads;
  const u8* from = weights + (size_t)((unit >> 2) * chunks + chunk) * CHUNK + (unit & 3) * WARP_CHUNK + lane * 16;
  // Requests run ahead of the products: chunk by chunk, then on to this warp's unit in the warpgroup's next quad.
  int own = of_quads < units ? ((units - of_quads + 4 * stride - 1) / 4 * per_stride >> 16) * length : 0;  // not multiplied yet
  int in_quad = length;
  const u32 to_next = keep((stride * chunks - length + 1) * CHUNK);
  const int length_kept = keep(length);
  const bool holds_scales = lane < 8;
  auto request = [&](u32 to, int ahead) {
    const bool wanted = own > ahead;
    copy_chunk_if(wanted, wanted && holds_scales, to, from);
    commit();
    in_quad--;
    from += in_quad == 0 ? to_next : CHUNK;
    if (in_quad == 0) in_quad = length_kept;
  };
  const u32 gate = base + RING, x_there = gate + 8, x_data = gate + 128;
#if BULK
  const bool asks = tid == THREADS - 32;  // not of the warp that has the other barrier to make
  if (asks) {
    init_barrier(x_there, 1);
    publish_barriers();
  }
#endif
#pragma unroll
  for (int s = 0; s < EARLY; s++) request(ring_begin + s * WARP_CHUNK, s);
  if (BULK) __syncthreads();  // its one thread needs none: racecheck wants a barrier made and used apart
  if (pdl == 1) let_next_launch();
  if (pdl) wait_for_previous();
  const u32 room = sliced * share + min(extra, sliced);   // alike in all CTAs: they send there
#if SPREAD
  const u32 zeros = x_data + 64 * m * room, x_scales = zeros + (64 * room + 16) * m + 128;
  const u32 half = x_length * 64 * m;
  const u8 *first_blocks = x + (size_t)(chunks - chunk0 - x_length) * 64 * m,
           *second_blocks = x + (size_t)(chunks + chunk0) * 64 * m,
           *their_scales = x + (size_t)chunks * 128 * m + chunk0 * 128;
#if BULK
  if (asks) {
    arrive_expecting(x_there, 2 * half + x_length * 128);
    bulk_copy(zeros - half, first_blocks, half, x_there);
    bulk_copy(zeros + 16 * m, second_blocks, half, x_there);
    bulk_copy(x_scales, their_scales, x_length * 128, x_there);
  }
#else
  copy_run(zeros - half, first_blocks, half);
  copy_run(zeros + 16 * m, second_blocks, half);
  copy_run(x_scales, their_scales, x_length * 128);
  commit();
#endif
  const u32 received = x_scales + 128 * room;
  for (u32 i = tid; i < (u32)m; i += THREADS)
    asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(zeros + i * 16), "r"(0) : "memory");
#else
  const u32 chunk_bytes = 256 * m + 64, x_scales = x_data + 256 * m, received = x_data + room * chunk_bytes;
  copy_run(x_data, x + (size_t)chunk0 * chunk_bytes, x_length * chunk_bytes);
  commit();
#endif
#pragma unroll
  for (int s = EARLY; s < STAGES - 1; s++) request(ring_begin + s * WARP_CHUNK, s);
  const int mine = (quads - (int)rank + (int)ranks - 1) >> rank_bits;  // quads that meet here
  const bool shares = ranks > 1;
  if (shares && tid == 0) {
    init_barrier(gate, 1);
    publish_barriers();
  }
  // Descriptors of wgmma: low word address and stride between the two blocks, high word stride between 8 columns,
  // all in 16 bytes. SPREAD 0: a row of zeros follows each token's; the second block is taken from one row earlier.
  // SPREAD 1: the first block lies as far before the zeros as the second after.
  const u32 step = m;                                       // 16 bytes x m
#if SPREAD
  const u32 x_low = (((zeros & 0x3FFFFu) >> 4) - step) | step << 16, x_next = (step << 16) - step, x_chunk = 4 * x_next;
  constexpr u32 scale_chunk = 128;
#else
  const u32 x_low = ((x_data & 0x3FFFFu) >> 4) | (2 * step - 1) << 16, x_next = 4 * step, x_chunk = chunk_bytes >> 4;
  const u32 scale_chunk = chunk_bytes;
#endif
  {  // the first wgmma of a kernel takes long: let it be one that nobody waits for
    float d[4 * SUMS];
    u32 a[16];
#pragma unroll
    for (int i = 0; i < 16; i++) a[i] = 0;
    const u64 b = descriptor(x_low, SPREAD ? step : 8);
    start(d, a, b, b, b, b);
    finish(d, a, a);
  }
#if !BULK
  wait_copies<STAGES - 1 - EARLY>();
#endif
  publish();
  __syncthreads();
#if BULK
  wait_for(x_there, 0);
#endif
  if (shares) {
    if (tid == 0) {
      const int met = 4 * mine - (((quads - 1) & (ranks - 1)) == rank ? 4 * quads - units : 0);
      arrive_expecting(gate, met * parts * (PART / 4));
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }

  const u32 to_scales = keep(1024 + row * 16 - lane * 16), skipped = chunk - chunk0;
  const u32 first_scales = keep(x_scales + t * (SPREAD ? 32 : 16)) + skipped * scale_chunk, first_x = x_low + skipped * x_chunk;
  const u32 first_high = SPREAD ? step * (4 * skipped + 1) : 8, up = SPREAD ? step : 0;
  u32 slot_now = ring_begin, slot_before = ring_end - WARP_CHUNK;      // this lane's 16 bytes
  u32 x_at = first_x, high = first_high, scales_at = first_scales;
  int turn = length, quad = first_quad;
  bool unmet = shares;  // by the cluster's other CTAs
  float total[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; i++) total[i] = 0.0f;

  // While wgmma multiplies a chunk, the next one is decoded.
  auto decode = [&](u32 from_slot, u32 (&a)[16]) {
    const uint4 w0 = shared16(from_slot), w1 = shared16(from_slot + 512);
    const u32 w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      a[4 * j] = first_four(w[2 * j]);
      a[4 * j + 1] = first_four(w[2 * j + 1]);
      a[4 * j + 2] = second_four(w[2 * j]);
      a[4 * j + 3] = second_four(w[2 * j + 1]);
    }
  };
  auto one_chunk = [&](u32 (&now)[16], u32 (&next)[16]) {
    float d[4 * SUMS];
    start(d, now, descriptor(x_at, high), descriptor(x_at + x_next, high + up), descriptor(x_at + 2 * x_next, high + 2 * up),
          descriptor(x_at + 3 * x_next, high + 3 * up));
    u32 s[4], u[4];
    unpack(s, shared16(slot_now + to_scales));
    unpack(u, shared16(scales_at));
#if SPREAD
    u32 v[4];
    unpack(v, shared16(scales_at + 16));
#endif
    u32 slot_next = slot_now + WARP_CHUNK;
    if (slot_next == ring_end) slot_next = ring_begin;
    wait_copies<STAGES - 3>();
    __syncwarp();
    request(slot_before, STAGES - 1);
    decode(slot_next, next);
    finish(d, now, next);
    // A warp without work adds what its ring happens to hold, and hands it over to nobody: a branch here would keep the
    // scales from being worked out while wgmma runs.
#pragma unroll
    for (int j = 0; j < 4; j++) {
      // rows r and r + 8; in each pair the first and the second block of 32 columns
      u32 upper, lower;
      e4m3x4_to_half2(s[j], upper, lower);
      const float* e = d + SUMS * j;
#if SPREAD
      u32 p[4] = {mul_half2(upper, u[j]), mul_half2(upper, v[j]), mul_half2(lower, u[j]), mul_half2(lower, v[j])};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        total[i] = fmaf(e[i], low_float(p[i]), total[i]);
        total[4 + i] = fmaf(e[4 + i], high_float(p[i]), total[4 + i]);
      }
#else
      u32 p[2] = {mul_half2(upper, u[j]), mul_half2(lower, u[j])};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        total[2 * i] = fmaf(e[2 * i], low_float(p[i]), total[2 * i]);
        total[2 * i + 1] = fmaf(e[2 * i + 1], high_float(p[i]), total[2 * i + 1]);
      }
#endif
    }
    own--;
    slot_before = slot_now;
    slot_now = slot_next;
    x_at += x_chunk;
    high += 4 * up;
    scales_at += scale_chunk;
    if (--turn) return;
    // Barriers and shared memory of the whole cluster must exist before anything is sent.
    if (unmet) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    unmet = false;
    const u32 place = received + ((quad >> rank_bits) * parts + slice) * PART + (slot * 32 + lane) * (PART / 128);
    if (own >= 0) deliver(total, place, quad & (ranks - 1), gate, shares);
#pragma unroll
    for (int i = 0; i < SUMS; i++) total[i] = 0.0f;
    turn = length;
    quad += stride;
    x_at = first_x;
    high = first_high;
    scales_at = first_scales;
  };
  u32 even[16], odd[16];
#pragma unroll
  for (int i = 0; i < 16; i++) even[i] = odd[i] = 0;
  if (own > 0) {
    wait_copies<STAGES - 2>();
    __syncwarp();
    decode(slot_now, even);
  }
  while (quad < quads) {
    one_chunk(even, odd);
    if (quad >= quads) break;
    one_chunk(odd, even);
  }
  if (pdl == 2) let_next_launch();
  if (unmet) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");

  const float scale = alpha * UNSCALE;
  auto store = [&](u32 token, u32 column, float value) {
    if (token < (u32)m && column < (u32)n)
      y[(size_t)token * n + column] = bf16 ? float_to_bf16(value * scale) : float_to_half(value * scale);
  };
  if (shares)
    wait_for(gate, 0);
  else
    __syncthreads();
  for (int i = tid; i < mine * 128; i += THREADS) {
    const u32 held = i & 127, at = received + (i >> 7) * parts * PART + held * (PART / 128), pair = held & 3;
    const int of_cluster = 4 * (rank + (i >> 7) * ranks) + (held >> 5);
    if (of_cluster >= units) continue;
    const u32 column = (first_unit + of_cluster) * 16 + ((held & 31) >> 2);
#if SPREAD
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int r = 0; r < parts; r++) {
      const uint4 part = shared16(at + r * PART);
      sum.x += __uint_as_float(part.x), sum.y += __uint_as_float(part.y);
      sum.z += __uint_as_float(part.z), sum.w += __uint_as_float(part.w);
    }
    store(2 * pair, column, sum.x), store(2 * pair + 1, column, sum.y);
    store(2 * pair, column + 8, sum.z), store(2 * pair + 1, column + 8, sum.w);
#else
    float2 sum = make_float2(0.0f, 0.0f);
    for (int r = 0; r < parts; r++) {
      u32 first, second;
      asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(first), "=r"(second) : "r"(at + r * PART));
      sum.x += __uint_as_float(first), sum.y += __uint_as_float(second);
    }
    store(pair, column, sum.x), store(pair, column + 8, sum.y);
#endif
  }
#endif
}
