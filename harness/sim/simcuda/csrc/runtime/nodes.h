// Nodes that programs add explicitly, from cudaGraphNodeParams.
#pragma once

#include <driver_types.h>

#include <vector>

#include "graph.h"

namespace simcuda {

// Returns the operation of a kernel, memcpy, memset, host, empty, memory allocation or memory free node. For an
// allocation, writes the address to the parameters. Throws Error.
Operation operation_of(cudaGraphNodeParams& params);

// Adds a node of any type. Throws Error.
Node& add_node(Graph& graph, const std::vector<Node*>& needs, cudaGraphNodeParams& params);

// Changes a node's parameters. Throws Error(cudaErrorInvalidValue) if the type differs, or cannot be changed.
void set_node(Node& node, cudaGraphNodeParams& params);

std::vector<Node*> nodes_of(const cudaGraphNode_t* handles, std::size_t count);  // throws Error

}  // namespace simcuda
