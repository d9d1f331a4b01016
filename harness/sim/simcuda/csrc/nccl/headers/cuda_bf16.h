// NCCL's header includes CUDA's file of this name, and uses nothing of it. CUDA's own needs the headers of CUDA's
// compiler.
#pragma once
