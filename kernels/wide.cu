// NVFP4 products for many tokens on Hopper (sm_90a): Y[M, N] = alpha * X[M, K] W[N, K]^T, W4A4 and W4A16, any M.
//
// What binds it. From some 200 tokens on the tensor cores: 16-bit wgmma, as for BF16, since codes times block scales
// are exact in 16 bits and fp8 could not hold them. Below, memory, and in between what an SM takes in from L2: a tile
// of R rows and T tokens wants 4096 / R bytes of activations a clock at full speed, and an SM gets some 24. What this
// does about it:
//   - Weights stay packed until they are in registers, where wgmma takes its row operand from: a chunk of 64 x 128 is
//     4.6 KB instead of 16, so rows are nearly free and a CTA takes up to 256 of them for each token it reads.
//   - The order of K within a block of 16 is the one in which a lane has its codes ("tiles"), so decoding is a few bit
//     moves, a conversion (to bf16 there is none: more bit moves) and one multiplication a pair; activations are laid
//     out to match by whoever quantizes them.
//   - A warp of its own feeds a ring in shared memory by bulk copies, one for what a tile reads of a chunk of X (16 small
//     ones cost a fifth of the time at 8 tokens); while wgmma multiplies 32 columns, the next 32 are decoded into other
//     registers.
//   - Where tiles are too few for the machine, the CTAs of a cluster cut K between them and add their sums through
//     distributed shared memory, each CTA a part of the tile; or the chunks of all tiles are cut evenly between as many
//     CTAs as there are multiprocessors, and parts of tiles go through memory, announced by a warp of its own while the
//     others go on. Either way they are added in a fixed order: results do not vary.
//   - CTAs side by side along N may form a cluster as well, each of which reads a part of X for all of them.
// Tiles run through the tokens first, in bands, so that what the CTAs at work read of X and W stays in L2.
//
// What was traded: registers for sums leave room for one CTA an SM, so the 4 us that an H200 takes for the first bytes
// and the last stores of a tile overlap with nothing. (In the loop tiles of 128 and 256 tokens are multiplied at
// the same rate, the tensor cores'.)
//
// Compile-time: GROUPS warpgroups of 64 rows, TOKENS of a tile (8 to 256), STAGES of the ring, BLOCKS CTAs an SM,
// X_BF16 the type of x (and so of decoded weights): bf16 for W4A16 on bf16, else fp16. STREAM 1 for the even cut, TAKES.
#include "hopper.cuh"

#ifndef GROUPS
#define GROUPS 4
#endif
#ifndef TOKENS
#define TOKENS 128
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef X_BF16
#define X_BF16 0
#endif
#ifndef STREAM
#define STREAM 0
#endif
// Chunks that one sum of the tensor cores takes, where there are registers for sums of those sums; 0 for all. The cores
// cut off what lies below a sum's last bit, so errors grow with its length.
#ifndef TAKES
#define TAKES 0
#endif
#include "wgmma16.cuh"

static constexpr u32 WORKERS = 128 * GROUPS;                  // and a warpgroup one warp of which copies
// Registers of a worker: all of a CTA share what it was launched with (80, 96 or 168 a thread), and copying needs 32.
static constexpr u32 REGISTERS = BLOCKS == 2 ? 104 : GROUPS == 4 ? 112 : 232;
static constexpr u32 TILE_CHUNK = 4 * 1152;                   // 64 rows x 128 columns of codes and scales
static constexpr u32 X_CHUNK = TOKENS * 256, STAGE = X_CHUNK + GROUPS * TILE_CHUNK;
static constexpr u32 EIGHTS = TOKENS / 8, UNITS = GROUPS * EIGHTS;  // of tokens, and 64 rows of them
static constexpr u32 BAND = 16;                               // tiles of tokens
static constexpr float UNSCALE = X_BF16 ? 16384.0f : 64.0f;   // what decoding leaves out

// Blocks of K that are multiplied at once; with one, there are registers for the sums of four warpgroups of 128 tokens.
#ifndef STEP
#define STEP (GROUPS == 4 && TOKENS == 128 ? 1 : 2)
#endif

// All but the last PENDING groups of wgmma are over; `a` was an operand of one that is.
template <int PENDING> DEVICE void finish(u32 (&a)[STEP][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
  for (int i = 0; i < STEP; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]));
}

// Two rows (r, r + 8) of one of the two blocks in `upper` and `lower` as the operand of a wgmma; scales are those rows'
// for it, in both halves.
DEVICE void decode(int block, u32 upper, u32 lower, u32 upper_scale, u32 lower_scale, u32 (&a)[4]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const u32 q = half ? lower : upper, scale = half ? lower_scale : upper_scale;
    u32 first, second;
#if X_BF16
    if (block)
      second_four_bf16(q, first, second);
    else
      first_four_bf16(q, first, second);
    a[half] = mul_bf162(first, scale);
    a[2 + half] = mul_bf162(second, scale);
#else
    e4m3x4_to_half2(block ? second_four(q) : first_four(q), first, second);
    a[half] = mul_half2(first, scale);
    a[2 + half] = mul_half2(second, scale);
#endif
  }
}
// Scales E4M3 [row half][block] as pairs of the 16-bit type, one a row half.
DEVICE void scale_pairs(u32 scales, u32& upper, u32& lower) {
#if X_BF16
  upper = e4m3x2_to_bf162_up(scales), lower = e4m3x2_to_bf162_up<true>(scales);
#else
  e4m3x4_to_half2(scales, upper, lower);
#endif
}

// What is to be multiplied: chunks from `chunk` on of the tile at (tile0, token0), tile0 in 64 rows.
struct Run {
  u32 tile0, token0;
  int chunk, length;
};
// Read again, so that it need not be held in the registers of those who copy.
DEVICE u32 lane_anew() {
  u32 lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
// Tile number `index` of those that run through the tokens first, in bands.
DEVICE Run tile_at(u32 index, u32 row_tiles, u32 token_tiles) {
  u32 band = 0, width = token_tiles;
  if (token_tiles > BAND) {  // a division takes long, and nothing has begun yet
    band = index / (BAND * row_tiles);
    index -= band * BAND * row_tiles;
    width = min(BAND, token_tiles - band * BAND);
  }
  const u32 row_tile = width == 1 ? index : index / width;
  return {row_tile * GROUPS, (band * BAND + index - row_tile * width) * TOKENS, 0, 0};
}

// weights  [tiles of 64 rows][chunks of 128 columns][4608 bytes], layout "tiles"
// x        [chunks][eights of tokens][16][8 tokens][8] of 16 bits ("panels", quantize.cu), zero beyond K
// y        [M, N] fp16 or bf16
// row_tiles, token_tiles  of a cluster, which takes one of each
// STREAM 0: a cluster takes a tile of rows for each of its 2^side_bits CTAs that lie side by side along N and share what
//          they read of x; the others cut K between them: `share` chunks each, one more for the first `extra`
// STREAM 1: `share` and `extra` cut the chunks of all tiles, one after the other, between all clusters, whose CTAs lie
//          side by side. Sums of a tile that was begun by another cluster go to `parts` [CTAs][TOKENS/8][threads][4], and
//          the CTA's flag is raised; who began the tile adds them, in order, and lowers it. `flags` are 0 before and after.
extern "C" __global__ void __launch_bounds__(WORKERS + 128, BLOCKS)
wide(const u8* __restrict__ weights, const u8* x, u16* y, float* parts, u32* flags, float alpha, int n, int m, int chunks,
     int row_tiles, int token_tiles, int side_bits, int share, int extra, int bf16, int pdl) {
#if HAS_CLUSTER
  extern __shared__ __align__(128) u8 shared[];
  const u32 base = shared_address(shared), full = base + STAGES * STAGE, empty = full + 8 * STAGES;
  const u32 gate = empty + 8 * STAGES;
  const u32 warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), id = threadIdx.x & 31;
  const bool copies = warp == 4 * GROUPS;
  u32 cta, ctas;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(cta));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
  const u32 side = 1 << side_bits, place_aside = cta & (side - 1);
#if STREAM
  constexpr u32 ranks = 1, rank = 0, first_cta = 0;
  // Clusters wait for those of higher numbers, so these get the places that start first: were some not on the machine yet,
  // with another kernel that waits alike in their places, neither would end. (That blocks start in order is what GPUs do,
  // not what CUDA promises; with one kernel of this kind at a time nothing depends on it.)
  const u32 number = (gridDim.x >> side_bits) - 1 - (blockIdx.x >> side_bits);
  const u32 begin_at = number * share + min(number, extra), end_at = begin_at + share + (number < extra);
  auto place_of = [&](u32 other) { return other << side_bits | place_aside; };  // the CTA of that cluster with these rows
  auto run_from = [&](u32 at) {
    const u32 tile = at / chunks;
    Run run = tile_at(tile, row_tiles, token_tiles);
    run.tile0 = (run.tile0 << side_bits) + place_aside * GROUPS;
    run.chunk = at - tile * chunks;
    run.length = min(end_at - at, chunks - run.chunk);
    return run;
  };
#else
  const u32 rank = cta >> side_bits, ranks = ctas >> side_bits;
  const u32 cluster = ctas & (ctas - 1) ? blockIdx.x / ctas : blockIdx.x >> (31 - __clz(ctas));  // %clusterid divides
  const u32 first_cta = rank << side_bits, begin_at = 0, end_at = 1;
  auto run_from = [&](u32) {
    Run run = tile_at(cluster, row_tiles, token_tiles);
    run.tile0 = (run.tile0 << side_bits) + place_aside * GROUPS;
    run.chunk = rank * share + min((int)rank, extra);
    run.length = share + ((int)rank < extra);
    return run;
  };
#endif
  // The copying warp's place: a chunk of a run, and the number of its CTA's chunks before.
  u32 at = begin_at;
  Run run = run_from(at);
  const Run first_run = run;
  const u32 tiles = (n + 63) / 64, padded = (m + 7) & ~7;
  auto advance = [&] {
    run.chunk++, run.length--;
    at++;
    if (STREAM && run.length == 0 && at < end_at) run = run_from(at);
  };
  auto copy_weights = [&](u32 stage) {
    const u32 there = run.tile0 < tiles ? min(GROUPS, tiles - run.tile0) : 0;
    const u32 x_bytes = min(TOKENS, padded - run.token0) * 256;
    if (id == 0) arrive_expecting(full + 8 * stage, x_bytes + there * TILE_CHUNK);
    __syncwarp();
    if (id < there)
      bulk_copy(base + stage * STAGE + X_CHUNK + id * TILE_CHUNK,
                weights + ((size_t)(run.tile0 + id) * chunks + run.chunk) * TILE_CHUNK, TILE_CHUNK, full + 8 * stage);
  };
  int ahead = 0;
  if (copies) {  // weights do not depend on the kernel before: they are on their way before anything else
    if (id == 0) {
      const u32 arrivals = side > 1 ? side * WORKERS / 32 : WORKERS;
      for (u32 s = 0; s < STAGES; s++) init_barrier(full + 8 * s, 1), init_barrier(empty + 8 * s, arrivals);
      if (ranks > 1) init_barrier(gate, 1);
      publish_barriers();
      if (ranks > 1) arrive_expecting(gate, (UNITS - rank + ranks - 1) / ranks * ranks * 2048);
    }
    __syncwarp();
    for (; ahead < STAGES && run.length; ahead++) copy_weights(ahead), advance();
  }
  if (side > 1)
    cluster_meet();  // others' copies count on these barriers
  else
    __syncthreads();
  if (pdl) asm volatile("griddepcontrol.launch_dependents;");

  auto copy_rest = [&] {
    // of a chunk of x, which is one piece for a tile, each CTA copies a part for all that are side by side
    const u16 to_ctas = (u16)(((1u << side) - 1) << first_cta);
    auto copy_x = [&](u32 stage) {
      const u32 x_bytes = min(TOKENS, padded - run.token0) * 256 >> side_bits, part = place_aside * x_bytes;
      const u32 to = base + stage * STAGE + part;
      const u8* from = x + ((size_t)run.chunk * padded + run.token0) * 256 + part;
      if (id) return;
      if (side > 1)
        bulk_copy_to(to_ctas, to, from, x_bytes, full + 8 * stage);
      else
        bulk_copy(to, from, x_bytes, full + 8 * stage);
    };
    const Run after = run;
    const u32 after_at = at;
    if (pdl) asm volatile("griddepcontrol.wait;" ::: "memory");
    at = begin_at, run = first_run;
    for (int c = 0; c < ahead; c++) copy_x(c), advance();
    at = after_at, run = after;
    u32 stage = 0, parity = 0;
    while (run.length) {
      wait_for(empty + 8 * stage, parity);
      copy_weights(stage);
      copy_x(stage);
      advance();
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    // The CTA must not end while others still say here that they are done with a chunk.
    if (side > 1)
      for (int c = 0; c < ahead; c++) {
        wait_for(empty + 8 * stage, parity);
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
    __syncwarp();
  };
  if (warp >= 4 * GROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (copies) copy_rest();
#if STREAM
    else if (warp == 4 * GROUPS + 1) {  // says for the workers, who go on, that their part is written
      u32 cta_id;  // as `lane_anew`; `number` and its place again, for the same reason
      asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta_id));
      const u32 last = (gridDim.x >> side_bits) - 1, again = last - (cta_id >> side_bits);
      if ((again * share + min(again, extra)) % chunks) {
        asm volatile("bar.sync 2, %0;" ::"n"(WORKERS + 32) : "memory");
        if (threadIdx.x == WORKERS + 32) {
          __threadfence();
          const u32 place = again << side_bits | (cta_id & ((1u << side_bits) - 1));
          asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flags + place) : "memory");
        }
        __syncwarp();
      }
    }
#endif
    if (ctas > 1) cluster_meet();
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));

  float sums[PARTS][SUMS];
  const u32 lane = lane_anew(), group = warp >> 2;
  const u32 codes_at = X_CHUNK + group * TILE_CHUNK + (warp & 3) * 1152 + lane * 16;
  const u32 scales_at = codes_at + 1024 - lane * 16 + (lane >> 2) * 16;
  u32 even[STEP][4], odd[STEP][4], stage = 0, parity = 0;
#pragma unroll
  for (int i = 0; i < STEP; i++)
#pragma unroll
    for (int r = 0; r < 4; r++) even[i][r] = odd[i][r] = 0;
  // The chunk before that of `stage` is done with: whoever copies there may know. Where CTAs share copies, one lane says
  // so for its warp; else each for itself, as compute-sanitizer's racecheck can follow.
  const Arrival mine = side == 1 || lane == place_aside ? HERE : lane < side ? THERE : NOWHERE;
  const u32 empty_there = address_in(empty, first_cta + min(lane, side - 1));
  auto release = [&](bool wanted, u32 stage) {
    __syncwarp();
    const u32 before = 8 * (stage ? stage - 1 : STAGES - 1);
    arrive(wanted ? mine : NOWHERE, empty + before, empty_there + before);
  };
  // Blocks of columns, STEP of them from the j-th of a chunk on, are multiplied; then those before are over, and
  // `before` is free.
  auto begin = [&](u32 (&a)[STEP][4], u32 (&before)[STEP][4], u32 at, int j) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < STEP; i++)
#pragma unroll
      for (u32 p = 0; p < PARTS; p++) {
        // low word address and stride of 8 columns of K, high word stride of 8 tokens, in 16 bytes
        const u32 low = ((at & 0x3FFFFu) >> 4) + 16 * (j + i) + p * 2048;
        multiply(sums[p], a[i], (u64)128 << 32 | low | 8 << 16);
      }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    finish<1>(before);
  };
  auto each_sum = [&](auto&& with) {
#pragma unroll
    for (u32 p = 0; p < PARTS; p++)
#pragma unroll
      for (u32 i = 0; i < SUMS; i++) with(p, i);
  };
  auto finish_sums = [&] {  // nothing is done with them before
    finish<0>(odd);
    each_sum([&](u32 p, u32 i) { asm volatile("" : "+f"(sums[p][i])); });
  };
  auto sum_up = [&](int length) {
    each_sum([&](u32 p, u32 i) { sums[p][i] = 0.0f; });
    for (int c = 0; c < length; c++) {
      const u32 at = base + stage * STAGE;
      wait_for(full + 8 * stage, parity);
      uint4 codes;
      uint2 scales;
      u32 s, t;
#pragma unroll
      for (int j = 0; j < 8; j += STEP) {
        auto& now = j / STEP % 2 ? odd : even;
#pragma unroll
        for (int i = 0; i < STEP; i++) {
          const int half = (j + i) / 4, pair = (j + i) / 2 % 2, block = (j + i) % 2;
          if ((j + i) % 4 == 0) {
            codes = shared16(at + codes_at + 512 * half);
            scales = shared8(at + scales_at + 8 * half);
          }
          if (block == 0) scale_pairs(pair ? scales.y : scales.x, s, t);
          decode(block, pair ? codes.z : codes.x, pair ? codes.w : codes.y, block ? high_twice(s) : low_twice(s),
                 block ? high_twice(t) : low_twice(t), now[i]);
        }
        begin(now, j / STEP % 2 ? even : odd, at, j);
        if (j == 0) release(c > 0, stage);
      }
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    finish_sums();
    release(true, stage);
  };
  auto accumulate = [&](int length) {
    if (TAKES == 0) {
      sum_up(length);
      return;
    }
    float totals[PARTS][SUMS];
    each_sum([&](u32 p, u32 i) { totals[p][i] = 0.0f; });
    for (; length > 0; length -= TAKES) {
      sum_up(min(length, TAKES));
      each_sum([&](u32 p, u32 i) { totals[p][i] += sums[p][i]; });
    }
    each_sum([&](u32 p, u32 i) { sums[p][i] = totals[p][i]; });
  };

  // Sums of 64 rows x 8 tokens, of one warpgroup: a lane has rows r and r + 8 of two tokens and writes four rows of one.
  // Four of those at once, at tile[i] and token[i], for their latencies to overlap.
  const float scale = alpha * UNSCALE;
  auto write = [&](const u32 (&tile)[4], const u32 (&first_token)[4], const float (&v)[4][4]) {
    const bool upper = lane & 1;
    u32 low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 pair[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float a = v[i][2 * half] * scale, b = v[i][2 * half + 1] * scale;
        pair[half] = transpose8(bf16 ? floats_to_bf162(a, b) : floats_to_half2(a, b));
      }
      low[i] = pair[0], high[i] = pair[1];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 other = __shfl_xor_sync(~0u, upper ? low[i] : high[i], 1);
      (upper ? low[i] : high[i]) = other;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 token = first_token[i] + (lane >> 2);
      const u32 row = tile[i] * 64 + (warp & 3) * 16 + (upper ? 8 : 0) + (lane & 2) * 2;
      u16* to = y + (size_t)token * n + row;
      if ((n & 3) == 0) {
        if (token < (u32)m && row < (u32)n) *(uint2*)to = make_uint2(low[i], high[i]);
      } else if (token < (u32)m) {
#pragma unroll
        for (u32 r = 0; r < 4; r++)
          if (row + r < (u32)n) to[r] = (u16)((r < 2 ? low[i] : high[i]) >> (16 * (r & 1)));
      }
    }
  };
  auto of_eight = [&](u32 e) { return sums[e / (EIGHTS / PARTS)] + e % (EIGHTS / PARTS) * 4; };  // unrolled: registers
  auto write_all = [&](const Run& run) {
#pragma unroll
    for (u32 e = 0; e < EIGHTS; e += 4) {
      u32 tile[4], token[4];
      float v[4][4];
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        const bool there = e + i < EIGHTS;
        tile[i] = run.tile0 + group, token[i] = there ? run.token0 + 8 * (e + i) : m;
#pragma unroll
        for (int k = 0; k < 4; k++) v[i][k] = there ? of_eight(e + i)[k] : 0.0f;
      }
      write(tile, token, v);
    }
  };

#if STREAM
  auto workers_meet = [] { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); };
  auto part_of = [&](u32 other, u32 e) {
    return parts + (((size_t)place_of(other) * EIGHTS + e) * WORKERS + threadIdx.x) * 4;
  };
  while (at < end_at) {
    run = run_from(at);
    accumulate(run.length);
    at += run.length;
    if (run.chunk) {
#pragma unroll
      for (u32 e = 0; e < EIGHTS; e++) {
        const float* v = of_eight(e);
        *(float4*)part_of(number, e) = make_float4(v[0], v[1], v[2], v[3]);
      }
      asm volatile("bar.arrive 2, %0;" ::"n"(WORKERS + 32) : "memory");
      continue;
    }
    int done = run.length;
    for (u32 other = number + 1; done < chunks; other++) {
      done += share + (other < extra);
      if (threadIdx.x == 0) {
        u32 raised, *flag = flags + place_of(other);
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
        while (!raised);
        *flag = 0;
      }
      workers_meet();
#pragma unroll
      for (u32 e = 0; e < EIGHTS; e++) {
        float* v = of_eight(e);
        float4 part;
        asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w) : "l"(part_of(other, e)));
        v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
      }
    }
    write_all(run);
  }
  if (ctas > 1) cluster_meet();  // copies for others are under way until they have all they need
#else
  accumulate(run.length);
  if (ranks == 1) {
    write_all(run);
    if (ctas > 1) cluster_meet();  // as above
    return;
  }
  // Unit u is added up by the CTA of rank u % ranks. Rings are free, and gates there, once all CTAs are here.
  cluster_meet();
  const u32 thread = threadIdx.x & 127;
  u32 owner = group * EIGHTS % ranks, place = group * EIGHTS / ranks;
#pragma unroll
  for (u32 e = 0; e < EIGHTS; e++) {
    const float* d = of_eight(e);
    const u32 cta_of = owner * side + place_aside;
    const u32 to = address_in(base + ((place * ranks + rank) * 128 + thread) * 16, cta_of);
    const u32 v[4] = {__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]), __float_as_uint(d[3])};
    send16(to, v, address_in(gate, cta_of));
    if (++owner == ranks) owner = 0, place++;
  }
  wait_for_cluster(gate, 0);
  for (u32 i = group; rank + ranks * i < UNITS; i += 4 * GROUPS) {
    u32 tile[4], token[4];
    float v[4][4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u32 mine = i + j * GROUPS, unit = rank + ranks * mine;
      tile[j] = run.tile0 + unit / EIGHTS, token[j] = unit < UNITS ? run.token0 + unit % EIGHTS * 8 : m;
      v[j][0] = v[j][1] = v[j][2] = v[j][3] = 0.0f;
      if (unit < UNITS)
        for (u32 r = 0; r < ranks; r++) {
          const uint4 part = shared16(base + ((mine * ranks + r) * 128 + thread) * 16);
          v[j][0] += __uint_as_float(part.x), v[j][1] += __uint_as_float(part.y);
          v[j][2] += __uint_as_float(part.z), v[j][3] += __uint_as_float(part.w);
        }
    }
    write(tile, token, v);
  }
#endif
#endif
}
