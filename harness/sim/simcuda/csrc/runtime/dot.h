// Graphs in Graphviz's DOT language.
#pragma once

#include <string>

#include "graph.h"

namespace simcuda {

std::string dot(const Graph& graph, bool verbose);

}  // namespace simcuda
