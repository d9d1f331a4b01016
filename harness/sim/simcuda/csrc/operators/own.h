// Operators of CUDA alone, for which the CPU has no kernel.
#pragma once

#include <set>
#include <string>

#include "registrar.h"

namespace simcuda {

void add_attention(Registrar& registrar);
void add_convolutions(Registrar& registrar);
void add_foreach(Registrar& registrar, const std::set<std::string>& names);  // of the operators that torch has for CUDA
void add_nested(Registrar& registrar);                                       // also for the key of nested tensors
void add_normalisations(Registrar& registrar);
void add_recurrent(Registrar& registrar);
void add_recurrent_layers();  // for other keys too, and so by libraries of its own
void add_products(Registrar& registrar);
void add_random_numbers(Registrar& registrar);
void add_others(Registrar& registrar);
void add_shapes(Registrar& registrar);

void add_sparse();  // for the keys of sparse tensors

}  // namespace simcuda
