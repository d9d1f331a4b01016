// Nodes that programs add by hand: what cudaGraphNodeParams ask for.
#pragma once

#include <driver_types.h>

#include <vector>

#include "graph.h"

namespace simcuda {

// The operation of a node of the types kernel, memcpy, memset, host, empty, memory allocation (whose address is then
// written to the parameters) and memory free. Throws Error.
Operation operation_of(cudaGraphNodeParams& params);

// Adds a node of any type. Throws Error.
Node& add_node(Graph& graph, const std::vector<Node*>& needs, cudaGraphNodeParams& params);

// Changes what a node does. Throws Error(cudaErrorInvalidValue) if the type is another one, or cannot be changed.
void set_node(Node& node, cudaGraphNodeParams& params);

std::vector<Node*> nodes_of(const cudaGraphNode_t* handles, std::size_t count);  // throws Error

}  // namespace simcuda
