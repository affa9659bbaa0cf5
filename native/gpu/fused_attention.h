// Attention as one kernel each way (cuDNN's flash attention): scores stay on the chip, so that none
// are written to memory.
#pragma once

#include "ops/kernel.h"

namespace flexlegion::gpu {

// What multi_head_attention computes without dropout, forward and backward. False: this task's is
// not of the kind that cuDNN does (fused_attention.cu says which is), or it has nothing for it
// here; then nothing was done, and it remains to be computed otherwise. They take scratch slots
// from 16 on.
bool fused_attention(const KernelTask& task, bool causal, float scale);
bool fused_attention_backward(const KernelTask& task, bool causal, float scale);

}  // namespace flexlegion::gpu
