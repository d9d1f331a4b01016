// The interface: collectives, point-to-point messages, and reduction operators.

#include <cstring>
#include <memory>
#include <string>

#include "communicator.h"
#include "group.h"

using namespace simcuda::nccl;

namespace {

ncclResult_t ask(const char* name, ncclComm_t handle, Call asked, cudaStream_t stream, bool reduces = false) {
  return call([&] {
    const auto communicator = Communicator::find(handle);
    communicator->check_ready();
    const std::string prefix = std::string(name) + " : ";
    check(size_of(asked.type) != 0, prefix + "invalid type " + std::to_string(asked.type));
    check(asked.root >= 0 && asked.root < communicator->ranks(), prefix + "invalid root " + std::to_string(asked.root) +
                                                                     " (root should be in the 0.." +
                                                                     std::to_string(communicator->ranks()) + " range)");
    if (reduces) asked.reduction = communicator->reduction_of(asked.op, asked.type);
    const bool here = asked.root == communicator->rank();
    const bool reads =
        asked.kind != Kind::receive && ((asked.kind != Kind::broadcast && asked.kind != Kind::scatter) || here);
    const bool writes =
        asked.kind != Kind::send && ((asked.kind != Kind::reduce && asked.kind != Kind::gather) || here);
    check(asked.count == 0 || !reads || asked.from != nullptr, prefix + "sendbuff argument is NULL");
    check(asked.count == 0 || !writes || asked.to != nullptr, prefix + "recvbuff argument is NULL");
    // A collective without elements does nothing and does not synchronise the ranks, but messages are sent
    // (src/enqueue.cc).
    if (asked.count == 0 && !is_message(asked.kind)) return;
    enqueue(communicator, std::move(asked), stream);
  });
}

}  // namespace

NCCL_EXPORT ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                       ncclComm_t communicator, cudaStream_t stream) {
  return ask("AllReduce", communicator, {Kind::all_reduce, from, to, count, type, 0, op}, stream, true);
}

NCCL_EXPORT ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                    int root, ncclComm_t communicator, cudaStream_t stream) {
  return ask("Reduce", communicator, {Kind::reduce, from, to, count, type, root, op}, stream, true);
}

NCCL_EXPORT ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return ask("ReduceScatter", communicator, {Kind::reduce_scatter, from, to, count, type, 0, op}, stream, true);
}

NCCL_EXPORT ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                       ncclComm_t communicator, cudaStream_t stream) {
  return ask("Broadcast", communicator, {Kind::broadcast, from, to, count, type, root}, stream);
}

NCCL_EXPORT ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                                   cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

NCCL_EXPORT ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                                       ncclComm_t communicator, cudaStream_t stream) {
  return ask("AllGather", communicator, {Kind::all_gather, from, to, count, type}, stream);
}

NCCL_EXPORT ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                                      ncclComm_t communicator, cudaStream_t stream) {
  return ask("AlltoAll", communicator, {Kind::all_to_all, from, to, count, type}, stream);
}

NCCL_EXPORT ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                    ncclComm_t communicator, cudaStream_t stream) {
  return ask("Gather", communicator, {Kind::gather, from, to, count, type, root}, stream);
}

NCCL_EXPORT ncclResult_t ncclScatter(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                                     ncclComm_t communicator, cudaStream_t stream) {
  return ask("Scatter", communicator, {Kind::scatter, from, to, count, type, root}, stream);
}

NCCL_EXPORT ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                                  ncclComm_t communicator, cudaStream_t stream) {
  return ask("Send", communicator, {Kind::send, from, nullptr, count, type, peer}, stream);
}

NCCL_EXPORT ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                                  cudaStream_t stream) {
  return ask("Recv", communicator, {Kind::receive, nullptr, to, count, type, peer}, stream);
}

NCCL_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                                  ncclScalarResidence_t residence, ncclComm_t handle) {
  return call([&] {
    const auto communicator = Communicator::find(handle);
    check(op != nullptr && scalar != nullptr, "ncclRedOpCreatePreMulSum : an argument is NULL");
    check(size_of(type) != 0, "ncclRedOpCreatePreMulSum : invalid type");
    Reduction reduction;
    reduction.multiplied = true;
    if (residence == ncclScalarHostImmediate) {
      std::memcpy(reduction.scalar.data(), scalar, size_of(type));
    } else {
      reduction.scalar_address = scalar;
    }
    *op = static_cast<ncclRedOp_t>(communicator->add_operation(reduction, type));
  });
}

NCCL_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  return call([&] {
    check(op >= ncclNumOps, "ncclRedOpDestroy : operator is builtin.");
    Communicator::find(handle)->remove_operation(op);
  });
}
