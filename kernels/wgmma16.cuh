// wgmma on 16-bit values with 64 rows of weights in registers and TOKENS tokens (8 to 256) in shared memory, sums in
// float32; X_BF16 selects bf16 or fp16. An instruction takes up to 128 tokens here, so 256 are two PARTS.
#pragma once
#include "nvfp4.cuh"

static constexpr u32 PARTS = TOKENS > 128 ? 2 : 1;
static constexpr u32 COLS = TOKENS / PARTS, SUMS = COLS / 2;  // tokens of a part, and a lane's sums for it

#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT8(i) OUT4(i), OUT4(i + 4)
#define OUT16(i) OUT8(i), OUT8(i + 8)
#define OUT32(i) OUT16(i), OUT16(i + 16)
#define OUT64(i) OUT32(i), OUT32(i + 32)
#define REGS4 "%0,%1,%2,%3"
#define REGS8 REGS4 ",%4,%5,%6,%7"
#define REGS16 REGS8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define REGS32 REGS16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGS64                                                                                                  \
  REGS32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56" \
         ",%57,%58,%59,%60,%61,%62,%63"
#if X_BF16
#define TYPES "f32.bf16.bf16"
#else
#define TYPES "f32.f16.f16"
#endif
#if TOKENS == 8
#define SHAPE "m64n8k16."
#define OUTS OUT4(0)
#define REGS REGS4
#define INS "{%4,%5,%6,%7},%8"
#elif TOKENS == 16
#define SHAPE "m64n16k16."
#define OUTS OUT8(0)
#define REGS REGS8
#define INS "{%8,%9,%10,%11},%12"
#elif TOKENS == 32
#define SHAPE "m64n32k16."
#define OUTS OUT16(0)
#define REGS REGS16
#define INS "{%16,%17,%18,%19},%20"
#elif TOKENS == 64
#define SHAPE "m64n64k16."
#define OUTS OUT32(0)
#define REGS REGS32
#define INS "{%32,%33,%34,%35},%36"
#else
#define SHAPE "m64n128k16."
#define OUTS OUT64(0)
#define REGS REGS64
#define INS "{%64,%65,%66,%67},%68"
#endif

// d += 64 rows x 16 columns of `a` times COLS tokens at `b`, begun.
DEVICE void multiply(float (&d)[SUMS], const u32 (&a)[4], u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned." SHAPE TYPES " {" REGS "}," INS ",1,1,1,0;"
               : OUTS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");
}
