// What the checks of work need of torch: the stacks of the program, and the blocks that the allocator gives to tensors.
#pragma once

namespace simcuda::sites {

bool wanted();  // whether the runtime checks work

// Gives the runtime the functions that remember and describe a place in the program.
void install();

}  // namespace simcuda::sites
