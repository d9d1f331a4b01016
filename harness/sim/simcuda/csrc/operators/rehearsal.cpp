#include "rehearsal.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "launch.h"
#include "random.h"
#include "silence.h"
#include "unobserved.h"

namespace simcuda {
namespace {

constexpr std::size_t most_bytes = 1 << 16;  // of all storages of a launch: the rehearsal must be cheap
constexpr std::size_t most_kinds = 1 << 16;  // the most kinds that are remembered

// The kind of a launch: a hash of everything that its checks can depend on.
class Kind {
 public:
  explicit Kind(const c10::OperatorHandle& op) { add(std::hash<c10::OperatorHandle>()(op)); }

  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        add(tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        add(tensor.value_or(at::Tensor()));
        mask_ = mask_ || (tensor.has_value() && is_mask(*tensor));
      }
    } else if (value.isInt()) {
      add(static_cast<std::size_t>(value.toInt()));
    } else if (value.isBool()) {
      add(std::size_t{5});  // some operators that accept 0 and 1 refuse booleans
      add(std::size_t{value.toBool() ? 2u : 1u});
    } else if (value.isDouble()) {
      add(value.toDouble());
    } else if (value.isIntList()) {
      add(value.toIntVector());
    } else if (value.isDoubleList()) {
      for (const double one : value.toDoubleVector()) {
        add(one);
      }
    } else if (value.isComplexDouble()) {
      add(value.toComplexDouble().real());
      add(value.toComplexDouble().imag());
    } else if (value.isList()) {
      for (const c10::IValue& one : value.toListRef()) {
        add(one);
      }
    } else if (value.isString()) {
      add(std::hash<std::string>()(value.toStringRef()));
    } else {
      add(value.isNone() ? std::size_t{1} : std::size_t{3});
    }
  }

  std::size_t number() const { return number_; }
  std::size_t bytes() const { return bytes_; }
  bool has_empty() const { return empty_; }
  // Whether a mask selects elements: their number depends on its values.
  bool has_mask() const { return mask_; }

 private:
  static bool is_mask(const at::Tensor& tensor) {
    return tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
  }
  void add(std::size_t part) { number_ = c10::hash_combine(number_, part); }
  // Numbers that change at each step of a program must not make a new kind each time, so this adds the sign and a
  // coarse magnitude.
  void add(double value) {
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);
    add(static_cast<std::size_t>(std::isfinite(value) ? exponent / 8 + 1000 : 5000));
    add(static_cast<std::size_t>(fraction < 0 ? 1 : fraction > 0 ? 2 : 3));
    add(static_cast<std::size_t>(value == 1.0 ? 1 : std::floor(value) == value ? 2 : 3));
  }
  void add(at::IntArrayRef sizes) {
    add(sizes.size());
    for (const std::int64_t size : sizes) {
      add(static_cast<std::size_t>(size));
    }
  }
  void add(const std::vector<std::int64_t>& sizes) { add(at::IntArrayRef(sizes)); }
  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      add(std::size_t{7});
      return;
    }
    bytes_ += tensor.storage().nbytes();
    empty_ = empty_ || tensor.numel() == 0;
    add(static_cast<std::size_t>(tensor.scalar_type()) * 4 + (tensor.is_conj() ? 2 : 0) + (tensor.is_neg() ? 1 : 0));
    add(tensor.sizes());
    add(static_cast<std::size_t>(tensor.is_contiguous() ? 1 : 2));
  }

  std::size_t number_ = 0;
  std::size_t bytes_ = 0;
  bool empty_ = false;
  bool mask_ = false;
};

class Kinds {
 public:
  bool known(std::size_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return numbers_.count(number) != 0;
  }
  void add(std::size_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (numbers_.size() >= most_kinds) {
      numbers_.clear();
    }
    numbers_.insert(number);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<std::size_t> numbers_;
};

Kinds& kinds() {
  static auto* all = new Kinds();
  return *all;
}

// Stand-ins for the tensors of a launch. Tensors that share a storage get stand-ins that share one, so overlaps are
// detected.
class Props {
 public:
  Props(bool indices, bool in_float) : indices_(indices), in_float_(in_float) {}

  c10::IValue stand_in(const c10::IValue& value) {
    if (value.isTensor()) {
      return stand_in(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> result;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        result.push_back(stand_in(tensor));
      }
      return result;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> result;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        result.push_back(tensor.has_value() ? std::optional(stand_in(*tensor)) : std::nullopt);
      }
      return result;
    }
    return value;
  }

 private:
  at::Tensor stand_in(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    at::Tensor result = whole(tensor.storage(), tensor.scalar_type())
                            .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    result._set_conj(tensor.is_conj());
    result._set_neg(tensor.is_neg());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      result.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return result;
  }

  at::Tensor whole(const c10::Storage& storage, at::ScalarType dtype) {
    const auto elements = static_cast<std::int64_t>(storage.nbytes() / c10::elementSize(dtype));
    if (in_float_ && (dtype == at::kHalf || dtype == at::kBFloat16)) {
      dtype = at::kFloat;
    }
    for (const auto& [known, tensor] : storages_) {
      if (known == storage.unsafeGetStorageImpl()) {
        return tensor.scalar_type() == dtype ? tensor : tensor.view(dtype);
      }
    }
    const bool index = indices_ && at::isIntegralType(dtype, /*includeBool=*/false);
    storages_.emplace_back(storage.unsafeGetStorageImpl(),
                           at::full({elements}, index ? 0 : 1, at::TensorOptions().dtype(dtype)));
    return storages_.back().second;
  }

  const bool indices_, in_float_;
  std::vector<std::pair<const void*, at::Tensor>> storages_;
};

bool is_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : argument.type())->kind() == c10::TypeKind::GeneratorType;
}

template <bool indices, bool in_float = false>
void rehearse(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  Kind kind(op);
  for (const c10::IValue& argument : arguments) {
    kind.add(argument);
  }
  if (kind.bytes() > most_bytes || kind.has_mask() || (indices && kind.has_empty()) || kinds().known(kind.number())) {
    return;
  }
  const operators::Unobserved unobserved;
  operators::Stack stack;
  Props props(indices, in_float);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(is_generator(op.schema().arguments()[i]) ? c10::IValue(operators::cpu_generator(0, 0))
                                                             : props.stand_in(arguments[i]));
  }
  const Silence silence;
  try {
    operators::call_on_host(op, &stack);
  } catch (const c10::LinAlgError&) {
    // The values of the launch differ. LAPACK fails to find the eigenvalues of 64 by 64 ones, for example.
  }
  kinds().add(kind.number());
}

// Arguments: the indexed tensor, and the indices. The CPU's kernel cannot check the devices of indices.
void rehearse_indexing(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const at::Device place = arguments[0].toTensor().device();
  for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorVector()) {
    TORCH_CHECK(!index.has_value() || !index->defined() || index->is_cpu() || index->device() == place,
                "indices should be either on cpu or on the same device as the indexed tensor (", place, ")");
  }
  rehearse<true>(op, arguments);
}

}  // namespace

Rehearsal rehearsal(const std::string& name, bool in_float) {
  static const std::unordered_set<std::string> with_indices = {"gather",
                                                               "scatter",
                                                               "scatter_",
                                                               "scatter_add",
                                                               "scatter_add_",
                                                               "scatter_reduce",
                                                               "scatter_reduce_",
                                                               "take",
                                                               "put_",
                                                               "index_add",
                                                               "index_add_",
                                                               "index_copy",
                                                               "index_copy_",
                                                               "index_reduce",
                                                               "index_reduce_",
                                                               "index_select",
                                                               "index_fill_",
                                                               "embedding_dense_backward",
                                                               "nll_loss_forward",
                                                               "multi_margin_loss",
                                                               "multi_margin_loss_backward",
                                                               "multilabel_margin_loss_forward",
                                                               "multilabel_margin_loss_backward",
                                                               "nll_loss_backward",
                                                               "nll_loss2d_forward",
                                                               "nll_loss2d_backward",
                                                               "max_unpool2d",
                                                               "max_unpool3d",
                                                               "searchsorted"};
  static const std::unordered_set<std::string> without = {
      "_assert_async",     "_functional_assert_async",      "masked_scatter_",
      "linalg_ldl_solve",  "_embedding_bag_dense_backward", "_ctc_loss",
      "_ctc_loss_backward"};
  const std::string base = name.substr(0, name.find('.'));
  if (base == "index" || base == "_index_put_impl_") {
    return &rehearse_indexing;
  }
  if (without.count(base) != 0) {
    return nullptr;
  }
  if (with_indices.count(base) != 0) {
    return in_float ? &rehearse<true, true> : &rehearse<true>;
  }
  return in_float ? &rehearse<false, true> : &rehearse<false>;
}

}  // namespace simcuda
