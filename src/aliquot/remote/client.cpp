// The half of a remote GPU that lives in the program: PyTorch's CUDA operators become messages.
//
// `client.py` compiles this file once for each version of PyTorch and loads it before PyTorch's
// Python half. It links only libtorch_cpu and libc10, and knows nothing of Python: its entry points
// are the C functions at the end. docs/remote.md describes the messages.
//
// - A tensor of device cuda is a storage id and a layout. Its address points nowhere.
// - A signature is an operator with everything about its arguments except which storages they are
//   and the values of its floating-point numbers. The first call of a signature waits for the
//   executor and learns the layouts of the results. Later calls do not wait; the executor compares
//   each of their results with what the client has learnt.
// - One mutex orders all messages and is held until the answer is there. Nothing here calls Python,
//   so a thread that waits for the mutex may hold Python's lock. Freed storages have a mutex of
//   their own, because any thread may free a tensor at any time.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

using c10::IValue;

enum Kind : uint8_t {
  CONTROL = 1, LAYOUT, SIGNATURE, CALL, CALL_WAIT, FREE, WRITE, HOST, READ, FLAGS, RESET
};
enum Answer : uint8_t { RESULTS = 1, DATA, ERROR, CONTROL_ANSWER };
enum Tag : uint8_t { NONE, TENSOR, LIST, INT, FLOAT, BOOL, STRING, DEVICE, COMPLEX, FIXED, HOST_TENSOR };

constexpr uint64_t kMostAnswer = uint64_t{1} << 24;  // of one that has no tensor
constexpr size_t kMostSignatures = 100000;
constexpr size_t kMostDimensions = 64;

// --- bytes ------------------------------------------------------------------------------------

struct Bytes {
  std::string data;
  void raw(const void* from, size_t size) { data.append(static_cast<const char*>(from), size); }
  template <class T> void put(T value) { raw(&value, sizeof value); }
  void text(std::string_view value) {
    put<uint32_t>(value.size());
    raw(value.data(), value.size());
  }
};

struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Reader {
  const char* at;
  const char* end;
  template <class T> T get() {
    if (size_t(end - at) < sizeof(T)) throw Invalid("an answer is too short");
    T value;
    memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  }
  std::string text() {
    auto size = get<uint32_t>();
    if (size_t(end - at) < size) throw Invalid("a text of an answer is cut off");
    std::string value(at, size);
    at += size;
    return value;
  }
};

// --- layouts and results ------------------------------------------------------------------------

struct Layout {
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
};

Layout layout_of(const at::Tensor& tensor) {
  auto* self = tensor.unsafeGetTensorImpl();
  Layout layout;
  layout.dtype = c10::typeMetaToScalarType(self->dtype());
  layout.sizes.assign(self->sizes().begin(), self->sizes().end());
  layout.strides.assign(self->strides().begin(), self->strides().end());
  layout.offset = self->storage_offset();
  return layout;
}

void put_layout(Bytes& to, const Layout& layout) {
  to.put<uint8_t>(uint8_t(layout.dtype));
  to.put<uint8_t>(uint8_t(layout.sizes.size()));
  to.put<int64_t>(layout.offset);
  to.raw(layout.sizes.data(), layout.sizes.size() * 8);
  to.raw(layout.strides.data(), layout.strides.size() * 8);
}

bool known_dtype(uint8_t code) {  // as in wire.py
  return code <= 11 || code == 15 || (code >= 23 && code <= 29);
}

// A layout and the size of its storage; every address of the layout is inside the storage.
Layout read_layout(Reader& from, uint64_t& storage_bytes) {
  Layout layout;
  auto code = from.get<uint8_t>();
  if (!known_dtype(code)) throw Invalid("an answer has an unknown dtype");
  layout.dtype = c10::ScalarType(code);
  size_t dimensions = from.get<uint8_t>();
  if (dimensions > kMostDimensions) throw Invalid("an answer has too many dimensions");
  layout.offset = from.get<int64_t>();
  for (size_t i = 0; i < dimensions; i++) layout.sizes.push_back(from.get<int64_t>());
  for (size_t i = 0; i < dimensions; i++) layout.strides.push_back(from.get<int64_t>());
  storage_bytes = from.get<uint64_t>();
  if (layout.offset < 0 || storage_bytes > uint64_t(INT64_MAX)) throw Invalid("an answer is out of range");
  bool empty = false;
  int64_t last = layout.offset, reach = 0;
  for (size_t i = 0; i < dimensions; i++) {
    if (layout.sizes[i] < 0 || layout.strides[i] < 0) throw Invalid("an answer has a negative size");
    if (layout.sizes[i] == 0) { empty = true; continue; }
    if (__builtin_mul_overflow(layout.sizes[i] - 1, layout.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      throw Invalid("an answer's tensor is too large");
  }
  int64_t bytes = 0, width = int64_t(c10::elementSize(layout.dtype));
  if (!empty && (__builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, width, &bytes) ||
                 uint64_t(bytes) > storage_bytes))
    throw Invalid("an answer's tensor is larger than its storage");
  return layout;
}

struct Result {
  char kind = 'N';  // T tensor, U undefined tensor, I, F, B, C numbers, S an argument, N none
  char source = 0;  // of a tensor: 0 new storage, 1 that of an argument, 2 that of an earlier result
  uint32_t index = 0;
  Layout layout;
  uint64_t storage_bytes = 0;
  int64_t integer = 0;
  double real = 0, imaginary = 0;
};

struct Change {
  uint32_t slot;
  Layout layout;
  uint64_t storage_bytes;
};

struct Outcome {
  std::vector<std::pair<bool, std::vector<Result>>> returns;  // whether it is a list, and what it has
  std::vector<Change> changes;
  uint32_t fresh = 0;
};

Result read_result(Reader& from, uint32_t slots, uint32_t tensors, uint32_t& fresh) {
  Result result;
  result.kind = from.get<char>();
  switch (result.kind) {
    case 'N': case 'S': case 'U': return result;
    case 'I': result.integer = from.get<int64_t>(); return result;
    case 'B': result.integer = from.get<uint8_t>() != 0; return result;
    case 'F': result.real = from.get<double>(); return result;
    case 'C':
      result.real = from.get<double>();
      result.imaginary = from.get<double>();
      return result;
    case 'T': break;
    default: throw Invalid("an answer has an unknown kind of result");
  }
  result.source = from.get<char>();
  result.index = from.get<uint32_t>();
  result.layout = read_layout(from, result.storage_bytes);
  bool right = result.source == 0 ? result.index == fresh++
             : result.source == 1 ? result.index < slots
             : result.source == 2 && result.index < tensors;
  if (!right) throw Invalid("an answer names a storage that does not exist");
  return result;
}

// The one function that reads the results of a call. `slots` is the number of its tensors.
Outcome read_outcome(Reader from, uint32_t slots) {
  Outcome outcome;
  uint32_t tensors = 0;
  auto returns = from.get<uint16_t>();
  for (uint16_t i = 0; i < returns; i++) {
    bool list = from.get<uint8_t>() != 0;
    uint32_t count = list ? from.get<uint32_t>() : 1;
    std::vector<Result> results;
    for (uint32_t k = 0; k < count; k++) {
      results.push_back(read_result(from, slots, tensors, outcome.fresh));
      char kind = results.back().kind;
      if (list && kind != 'T' && kind != 'U') throw Invalid("an answer's list has no tensors");
      tensors++;
    }
    outcome.returns.emplace_back(list, std::move(results));
  }
  auto changes = from.get<uint32_t>();
  for (uint32_t i = 0; i < changes; i++) {
    Change change;
    change.slot = from.get<uint32_t>();
    if (change.slot >= slots) throw Invalid("an answer changes an argument that does not exist");
    change.layout = read_layout(from, change.storage_bytes);
    outcome.changes.push_back(std::move(change));
  }
  if (from.at != from.end) throw Invalid("an answer has more bytes than it needs");
  return outcome;
}

// --- the connection -----------------------------------------------------------------------------

struct Operator {
  std::string name, overload;
  uint32_t id = 0;
  bool waits = false;          // its results depend on values, or are no tensors
  bool by_mask = false;        // they do if an index is a mask
  bool fixed_numbers = false;  // its numbers decide the layout of its results
  bool ignores_values = false; // it looks at shapes alone, such as zeros_like
  bool remembered = false;     // its answer depends on the signature alone
  std::vector<bool> scalars, written;
  std::vector<int> returned_argument;
};

struct Signature {
  uint32_t id = 0;
  bool learnt = false;
  std::shared_ptr<const Outcome> outcome;
};

struct Connection {
  int socket = -1;
  bool on_cpu = false;   // the executor computes on a CPU, as a stand-in for a GPU
  long cudnn = 0;
  std::string broken;    // why it cannot be used any more
  std::mutex wire;       // orders messages
  Bytes out;             // messages that were not sent yet
  uint64_t next_storage = 1;
  uint64_t flags = UINT64_MAX;
  std::unordered_map<std::string, uint32_t> layouts;
  std::unordered_map<std::string, Signature> signatures;
  std::unordered_map<const void*, std::unique_ptr<Operator>> operators;
  uint64_t calls = 0, waits = 0;
  std::mutex freeing;
  std::vector<uint64_t> freed;
};

Connection* connection = nullptr;  // never destroyed: tensors outlive static objects
std::atomic<bool> forked{false};

void check_alive() {
  TORCH_CHECK(!forked, "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                       "you must use the 'spawn' start method (this program's GPU is remote).");
  TORCH_CHECK(connection, "the program's remote GPU is not connected");
  TORCH_CHECK(connection->broken.empty(), connection->broken);
}

[[noreturn]] void lose(const std::string& why) {
  connection->broken = "The connection to the remote GPU is lost: " + why +
                       ". Its tensors are gone; start the program again.";
  TORCH_CHECK(false, connection->broken);
}

void send_all(const char* from, size_t size) {
  while (size) {
    ssize_t sent = ::send(connection->socket, from, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) lose(strerror(errno));
    from += sent;
    size -= size_t(sent);
  }
}

void receive_all(char* to, size_t size) {
  while (size) {
    ssize_t got = ::recv(connection->socket, to, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) lose("the executor has ended");
    if (got < 0) lose(strerror(errno));
    to += got;
    size -= size_t(got);
  }
}

void put_frame(Kind kind, const std::string& body, uint64_t more = 0) {
  connection->out.put<uint64_t>(body.size() + more);
  connection->out.put<uint8_t>(kind);
  connection->out.raw(body.data(), body.size());
}

void flush() {
  std::string data;
  data.swap(connection->out.data);
  send_all(data.data(), data.size());
}

// Storages that were freed since; called before a message is written, so a free comes after every
// use that was written before it.
void put_freed() {
  std::vector<uint64_t> ids;
  {
    std::lock_guard<std::mutex> lock(connection->freeing);
    ids.swap(connection->freed);
  }
  if (ids.empty()) return;
  Bytes body;
  body.raw(ids.data(), ids.size() * 8);
  put_frame(FREE, body.data);
}

[[noreturn]] void raise_error(const std::string& type, const std::string& text) {
  if (type == "OutOfMemoryError") TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  if (type == "IndexError") TORCH_CHECK_INDEX(false, text);
  if (type == "ValueError") TORCH_CHECK_VALUE(false, text);
  if (type == "TypeError") TORCH_CHECK_TYPE(false, text);
  if (type == "NotImplementedError") TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  if (type == "_LinAlgError" || type == "LinAlgError") TORCH_CHECK_LINALG(false, text);
  TORCH_CHECK(false, text);
}

// Sends everything and waits for one answer of this kind; an error of the executor is raised. Returns the
// length of its body, at most `most`, which comes next.
uint64_t await_answer(Answer wanted, uint64_t most) {
  flush();
  connection->waits++;
  char head[9];
  receive_all(head, sizeof head);
  uint64_t size;
  memcpy(&size, head, 8);
  if (size > (head[8] == ERROR ? kMostAnswer : most)) lose("an answer is too long");
  if (head[8] == ERROR) {
    std::string body(size, 0), type, text;
    receive_all(body.data(), size);
    try {
      Reader from{body.data(), body.data() + size};
      type = from.text();
      text = from.text();
    } catch (const Invalid& error) { lose(error.what()); }
    raise_error(type, text);
  }
  if (head[8] != wanted) lose("an answer is of another kind than its question");
  return size;
}

std::string wait_for(Answer wanted) {
  std::string body(await_answer(wanted, kMostAnswer), 0);
  receive_all(body.data(), body.size());
  return body;
}

// --- tensors ------------------------------------------------------------------------------------

void free_storage(void* context) {
  if (!connection || forked) return;
  std::lock_guard<std::mutex> lock(connection->freeing);
  connection->freed.push_back(uint64_t(uintptr_t(context)));
}

c10::Storage storage_of(uint64_t id, uint64_t bytes) {
  // Distinct for each storage, and nothing is mapped there.
  auto* address = reinterpret_cast<void*>(uintptr_t(0x500000000000) + (id & 0xffffffff) * 0x1000);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), size_t(bytes),
      c10::DataPtr(address, reinterpret_cast<void*>(uintptr_t(id)), &free_storage, c10::Device(c10::kCUDA, 0)),
      nullptr, false));
}

at::Tensor tensor_on(c10::Storage storage, const Layout& layout) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::fromScalarType(layout.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
  return tensor;
}

// The same memory without the marks of lazy conjugation and negation.
at::Tensor unmarked(const at::Tensor& tensor) {
  auto plain = tensor.detach();
  plain._set_conj(false);
  plain._set_neg(false);
  return plain;
}

void check_plain(const at::Tensor& tensor, const Operator* op, bool marks = false) {
  auto name = [&] { return op ? op->name : std::string("a copy"); };
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && !tensor.is_quantized(), name(),
                              ": sparse and quantized tensors are not supported on a remote GPU");
  TORCH_CHECK_NOT_IMPLEMENTED(marks || (!tensor.is_conj() && !tensor.is_neg()), name(),
                              ": a lazily conjugated or negated tensor is not supported on a remote GPU here; "
                              "call resolve_conj() or resolve_neg() first");
  TORCH_CHECK_NOT_IMPLEMENTED(known_dtype(uint8_t(tensor.scalar_type())), name(), ": dtype ", tensor.scalar_type(),
                              " is not supported on a remote GPU");
}

uint64_t storage_id(const at::Tensor& tensor) {
  auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  TORCH_CHECK_NOT_IMPLEMENTED(storage, "this kind of tensor is not supported on a remote GPU");
  auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  TORCH_CHECK(data.get_deleter() == &free_storage,
              "this tensor of device cuda has no storage on the remote GPU");
  return uint64_t(uintptr_t(data.get_context()));
}

uint32_t layout_id(const at::Tensor& tensor) {
  Bytes key;
  put_layout(key, layout_of(tensor));
  auto [found, fresh] = connection->layouts.emplace(key.data, uint32_t(connection->layouts.size()));
  if (fresh) {
    Bytes body;
    body.put<uint32_t>(found->second);
    body.raw(key.data.data(), key.data.size());
    put_frame(LAYOUT, body.data);
  }
  return found->second;
}

// --- calls --------------------------------------------------------------------------------------

Operator* operator_of(const c10::OperatorHandle& handle) {
  auto& place = connection->operators[&handle.schema()];
  if (place) return place.get();
  auto op = std::make_unique<Operator>();
  const auto& schema = handle.schema();
  op->id = uint32_t(connection->operators.size());
  op->name = schema.name();
  op->overload = schema.overload_name();
  auto starts = [&](const char* prefix) { return op->name.rfind(prefix, 0) == 0; };
  op->by_mask = starts("aten::index") || starts("aten::_index_put") || starts("aten::_unsafe_index");
  bool tagged = handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output);
  op->fixed_numbers = starts("aten::arange") || starts("aten::range") || op->name == "aten::_fused_sdp_choice";
  op->remembered = op->name == "aten::_fused_sdp_choice";
  op->waits = tagged && !op->by_mask;
  op->ignores_values = op->name.size() > 5 && op->name.compare(op->name.size() - 5, 5, "_like") == 0;
  for (auto& argument : schema.arguments()) {
    auto type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (auto list = type->cast<c10::ListType>()) {
      op->scalars.push_back(list->getElementType()->kind() == c10::TypeKind::NumberType);
    } else {
      op->scalars.push_back(true);
    }
    op->written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  }
  for (auto& result : schema.returns()) {
    int from = -1;
    if (result.alias_info() && result.alias_info()->isWrite())
      for (size_t i = 0; i < schema.arguments().size(); i++) {
        auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == result.alias_info()->beforeSets()) from = int(i);
      }
    op->returned_argument.push_back(from);
    auto kind = result.type()->kind();
    bool tensors = kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType;
    if (!tensors && !op->remembered) op->waits = true;
  }
  place = std::move(op);
  return place.get();
}

struct Encoder {
  Operator* op;
  Bytes key;                           // the signature
  Bytes ids, numbers;                  // what differs from call to call
  uint32_t id_count = 0, number_count = 0;
  std::vector<at::Tensor> slots;
  std::vector<uint64_t> lent;          // copies of host tensors, for this call alone
  bool masked = false;
  bool sent = false;

  ~Encoder() {  // an argument was refused: its copies are freed like any storage
    if (sent || lent.empty()) return;
    std::lock_guard<std::mutex> lock(connection->freeing);
    connection->freed.insert(connection->freed.end(), lent.begin(), lent.end());
  }

  void number(double value, bool varies) {
    if (varies && !op->fixed_numbers) {
      key.put<uint8_t>(FLOAT);
      numbers.put<double>(value);
      number_count++;
    } else {
      key.put<uint8_t>(FIXED);
      key.put<double>(value);
    }
  }

  void tensor(const at::Tensor& value, bool written) {
    if (!value.defined()) { key.put<uint8_t>(NONE); return; }
    check_plain(value, op, op->ignores_values);
    if (value.is_cuda()) {
      key.put<uint8_t>(TENSOR);
      key.put<uint32_t>(layout_id(value));
      ids.put<uint64_t>(storage_id(value));
    } else {
      TORCH_CHECK(value.device().is_cpu(), op->name, ": a tensor is on ", value.device());
      TORCH_CHECK(!written, "Expected all tensors to be on the same device, but ", op->name,
                  " would write to a tensor on cpu from one on cuda:0");
      if (value.unsafeGetTensorImpl()->is_wrapped_number()) {
        scalar(value.item());
        return;
      }
      auto plain = value.contiguous();
      if (plain.storage_offset()) plain = plain.clone();
      key.put<uint8_t>(HOST_TENSOR);
      auto layout = layout_id(plain);
      key.put<uint32_t>(layout);
      uint64_t id = connection->next_storage++;
      Bytes body;
      body.put<uint64_t>(id);
      body.put<uint32_t>(layout);
      body.raw(plain.const_data_ptr(), plain.nbytes());
      put_frame(HOST, body.data);
      ids.put<uint64_t>(id);
      lent.push_back(id);
    }
    id_count++;
    slots.push_back(value);
    masked |= value.scalar_type() == at::kBool || value.scalar_type() == at::kByte;
  }

  void scalar(const at::Scalar& value) {
    if (value.isBoolean()) { key.put<uint8_t>(BOOL); key.put<uint8_t>(value.toBool()); }
    else if (value.isComplex()) {
      auto number = value.toComplexDouble();
      key.put<uint8_t>(COMPLEX);
      key.put<double>(number.real());
      key.put<double>(number.imag());
    }
    else if (value.isFloatingPoint()) number(value.toDouble(), true);
    else { key.put<uint8_t>(INT); key.put<int64_t>(value.toLong()); }
  }

  void value(const IValue& value, bool varies, bool written) {
    if (value.isNone()) { key.put<uint8_t>(NONE); return; }
    if (value.isTensor()) { tensor(value.toTensor(), written); return; }
    if (value.isDouble()) { number(value.toDouble(), varies); return; }
    if (value.isBool() || value.isComplexDouble() || value.isInt()) { scalar(value.toScalar()); return; }
    if (value.isSymInt()) {
      key.put<uint8_t>(INT);
      key.put<int64_t>(value.toSymInt().guard_int(__FILE__, __LINE__));
      return;
    }
    if (value.isString()) { key.put<uint8_t>(STRING); key.text(value.toStringRef()); return; }
    if (value.isDevice()) {
      auto device = value.toDevice();
      TORCH_CHECK(device.is_cuda() || device.is_cpu(), op->name, ": device ", device, " is not remote");
      TORCH_CHECK(!device.is_cuda() || device.index() <= 0, "CUDA error: invalid device ordinal: ", device,
                  "; a remote slice has one GPU, cuda:0");
      key.put<uint8_t>(DEVICE);
      key.put<uint8_t>(device.is_cuda());
      return;
    }
    if (value.isList()) {
      auto items = value.toListRef();
      key.put<uint8_t>(LIST);
      key.put<uint32_t>(uint32_t(items.size()));
      for (auto& item : items) this->value(item, varies, written);
      return;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, op->name, ": an argument of kind ", value.tagKind(),
                                " is not supported on a remote GPU");
  }
};

uint64_t flags_now() {
  auto& context = at::globalContext();
  uint64_t bits = 0, at = 0;
  auto bit = [&](bool value) { bits |= uint64_t(value) << at++; };
  bit(context.userEnabledCuDNN());
  bit(context.benchmarkCuDNN());
  bit(context.deterministicCuDNN());
  bit(context.deterministicAlgorithms());
  bit(context.deterministicAlgorithmsWarnOnly());
  bit(context.allowTF32CuDNN());
  bit(context.allowTF32CuBLAS());
  bit(context.userEnabledFlashSDP());
  bit(context.userEnabledMemEfficientSDP());
  bit(context.userEnabledMathSDP());
  bit(context.userEnabledCuDNNSDP());
  bit(context.deterministicFillUninitializedMemory());
  bit(context.allowFP16ReductionCuBLAS() == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK);
  bit(context.allowBF16ReductionCuBLAS() == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK);
  bit(context.allowFP16AccumulationCuBLAS());
  return bits | uint64_t(c10::typeMetaToScalarType(c10::get_default_dtype())) << 16;
}

void put_flags() {
  uint64_t flags = flags_now();
  if (flags == connection->flags) return;
  Bytes body;
  body.put<uint64_t>(flags);
  put_frame(FLAGS, body.data);
  connection->flags = flags;
}

void forget_signatures_if_many() {
  if (connection->signatures.size() < kMostSignatures && connection->layouts.size() < kMostSignatures) return;
  put_frame(RESET, "");
  connection->signatures.clear();
  connection->layouts.clear();
}

at::Tensor build(const Result& result, uint64_t base, const Encoder& call, const std::vector<at::Tensor>& earlier) {
  if (result.kind != 'T') return at::Tensor();
  if (result.source == 0) return tensor_on(storage_of(base + result.index, result.storage_bytes), result.layout);
  const auto& from = result.source == 1 ? call.slots[result.index] : earlier[result.index];
  TORCH_CHECK_NOT_IMPLEMENTED(from.defined() && from.is_cuda(), call.op->name, ": its result is a view of a host tensor");
  return tensor_on(from.storage(), result.layout);
}

IValue plain_value(const Result& result) {
  switch (result.kind) {
    case 'I': return result.integer;
    case 'B': return result.integer != 0;
    case 'F': return result.real;
    case 'C': return c10::complex<double>(result.real, result.imaginary);
    default: return IValue();
  }
}

bool has_marks(const IValue& value) {
  return value.isTensor() && value.toTensor().defined() && (value.toTensor().is_conj() || value.toTensor().is_neg());
}

// Some operators take lazily conjugated or negated tensors as they are: what they read is made plain here.
void resolve_marks(const c10::OperatorHandle& handle, torch::jit::Stack* stack, size_t first) {
  const auto& arguments = handle.schema().arguments();
  for (size_t i = 0; i < arguments.size(); i++) {
    auto& value = (*stack)[first + i];
    if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()) continue;
    if (has_marks(value)) {
      value = value.toTensor().resolve_conj().resolve_neg();
    } else if (value.isTensorList()) {
      auto items = value.toTensorList();
      bool any = false;
      for (size_t k = 0; k < items.size(); k++) any |= has_marks(items.get(k));
      if (!any) continue;
      c10::List<at::Tensor> plain;
      for (size_t k = 0; k < items.size(); k++) plain.push_back(items.get(k).resolve_conj().resolve_neg());
      value = plain;
    }
  }
}

void call_remote(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  check_alive();
  size_t count = handle.schema().arguments().size(), first = stack->size() - count;
  resolve_marks(handle, stack, first);
  // What this call replaces is released after the mutex: releasing may run other code.
  torch::jit::Stack results;
  {
    std::lock_guard<std::mutex> lock(connection->wire);
    check_alive();
    put_freed();
    forget_signatures_if_many();
    put_flags();
    Encoder call;
    call.op = operator_of(handle);
    auto* op = call.op;
    call.key.put<uint32_t>(op->id);
    call.key.put<uint64_t>(connection->flags);
    size_t head = call.key.data.size();
    for (size_t i = 0; i < count; i++) call.value((*stack)[first + i], op->scalars[i], op->written[i]);
    auto [found, fresh] = connection->signatures.try_emplace(call.key.data);
    auto& signature = found->second;
    if (fresh) {
      signature.id = uint32_t(connection->signatures.size() - 1);
      Bytes body;
      body.put<uint32_t>(signature.id);
      body.text(op->name);
      body.text(op->overload);
      body.put<uint32_t>(uint32_t(count));
      body.raw(call.key.data.data() + head, call.key.data.size() - head);
      put_frame(SIGNATURE, body.data);
    }
    connection->calls++;
    bool varies = op->waits || (op->by_mask && call.masked);
    std::shared_ptr<const Outcome> outcome = signature.outcome;
    uint64_t base = connection->next_storage;
    if (!(signature.learnt && op->remembered)) {
      bool wait = varies || !signature.learnt;
      Bytes body;
      body.put<uint32_t>(signature.id);
      body.put<uint64_t>(base);
      body.put<uint32_t>(call.id_count);
      body.put<uint32_t>(call.number_count);
      body.raw(call.ids.data.data(), call.ids.data.size());
      body.raw(call.numbers.data.data(), call.numbers.data.size());
      put_frame(wait ? CALL_WAIT : CALL, body.data);
      call.sent = true;
      if (!call.lent.empty()) {
        Bytes ids;
        ids.raw(call.lent.data(), call.lent.size() * 8);
        put_frame(FREE, ids.data);
      }
      if (wait) {
        auto answer = wait_for(RESULTS);
        try {
          auto made = std::make_shared<Outcome>(
              read_outcome(Reader{answer.data(), answer.data() + answer.size()}, uint32_t(call.slots.size())));
          if (made->returns.size() != op->returned_argument.size()) throw Invalid("an answer has another number of results");
          for (const auto& change : made->changes)
            if (!call.slots[change.slot].is_cuda()) throw Invalid("an answer changes a tensor that is not on the GPU");
          outcome = std::move(made);
        } catch (const Invalid& error) { lose(error.what()); }
        if (!varies) { signature.outcome = outcome; signature.learnt = true; }
      } else {
        flush();
      }
      connection->next_storage += outcome->fresh;
    }
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < outcome->returns.size(); i++) {
      const auto& [list, made] = outcome->returns[i];
      size_t begin = tensors.size();
      for (const auto& result : made) tensors.push_back(build(result, base, call, tensors));
      if (op->returned_argument[i] >= 0) results.push_back((*stack)[first + size_t(op->returned_argument[i])]);
      else if (list) {
        c10::List<at::Tensor> items;
        for (size_t k = begin; k < tensors.size(); k++) items.push_back(tensors[k]);
        results.emplace_back(std::move(items));
      }
      else if (made[0].kind == 'T' || made[0].kind == 'U') results.emplace_back(tensors[begin]);
      else results.push_back(plain_value(made[0]));
    }
    for (const auto& change : outcome->changes) {
      auto* self = call.slots[change.slot].unsafeGetTensorImpl();
      self->unsafe_storage().unsafeGetStorageImpl()->set_nbytes(size_t(change.storage_bytes));
      self->set_sizes_and_strides(change.layout.sizes, change.layout.strides, change.layout.offset);
    }
  }
  torch::jit::drop(*stack, count);
  for (auto& result : results) stack->push_back(std::move(result));
}

void ignore_call(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, handle.schema().arguments().size());
}

void refuse_call(const c10::OperatorHandle& handle, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, handle.schema().name(), ".", handle.schema().overload_name(),
                              " is not supported on a remote GPU (docs/remote.md lists what is)");
}

// --- copies between this machine and the GPU ------------------------------------------------------

void write_tensor(const at::Tensor& to, const at::Tensor& from) {
  check_alive();
  check_plain(to, nullptr);
  auto plain = from.resolve_conj().resolve_neg().to(to.scalar_type()).expand(to.sizes()).contiguous();
  std::lock_guard<std::mutex> lock(connection->wire);
  check_alive();
  put_freed();
  Bytes body;
  body.put<uint64_t>(storage_id(to));
  body.put<uint32_t>(layout_id(to));
  put_frame(WRITE, body.data, plain.nbytes());
  flush();
  send_all(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
}

at::Tensor read_tensor(const at::Tensor& from) {
  check_alive();
  bool conjugated = from.is_conj(), negated = from.is_neg();
  at::Tensor plain = conjugated || negated ? unmarked(from) : from;
  check_plain(plain, nullptr);
  auto to = at::empty(from.sizes(), from.options().device(at::kCPU));
  {
    std::lock_guard<std::mutex> lock(connection->wire);
    check_alive();
    put_freed();
    Bytes body;
    body.put<uint64_t>(storage_id(plain));
    body.put<uint32_t>(layout_id(plain));
    put_frame(READ, body.data);
    if (await_answer(DATA, to.nbytes()) != to.nbytes()) lose("a read has another size than its tensor");
    receive_all(static_cast<char*>(to.mutable_data_ptr()), to.nbytes());
  }
  if (conjugated) to = to.conj();
  if (negated) to = to._neg_view();
  return to;
}

void call_by_name(const char* name, torch::jit::Stack* stack) {
  call_remote(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), stack);
}

at::Tensor& copy_into(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (self.is_cuda() && from.is_cuda()) {
    TORCH_CHECK_NOT_IMPLEMENTED(!self.is_conj() && !self.is_neg(), "a copy into a lazily conjugated tensor is not "
                                "supported on a remote GPU; call resolve_conj() first");
    torch::jit::Stack stack{self, from.resolve_conj().resolve_neg(), non_blocking};
    call_by_name("aten::copy_", &stack);
  } else if (self.is_cuda()) {
    write_tensor(self, from);
  } else {
    self.copy_(read_tensor(from));
  }
  return self;
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool>, bool non_blocking,
                   std::optional<at::MemoryFormat> format) {
  auto to = device.value_or(self.device());
  auto type = dtype.value_or(self.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::kStrided, "sparse tensors are not supported on a remote GPU");
  TORCH_CHECK(to.is_cuda() || to.is_cpu(), "a tensor of a remote GPU cannot be copied to ", to);
  if (to.is_cuda() && self.is_cuda()) {
    torch::jit::Stack stack{self.resolve_conj().resolve_neg(), int64_t(type), IValue(), IValue(), IValue(), non_blocking,
                            format ? IValue(int64_t(*format)) : IValue()};
    call_by_name("aten::_to_copy", &stack);
    return stack[0].toTensor();
  }
  auto kind = format.value_or(at::MemoryFormat::Preserve);
  auto options = self.options().dtype(type).device(to).pinned_memory(false);
  auto made = kind != at::MemoryFormat::Preserve ? at::empty(self.sizes(), options, kind)
            : self.is_non_overlapping_and_dense() ? at::empty_strided(self.sizes(), self.strides(), options)
            : at::empty(self.sizes(), options);
  if (to.is_cuda()) write_tensor(made, self);
  else made.copy_(read_tensor(self));
  return made;
}

at::Tensor clone_tensor(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  bool marked = self.is_conj() || self.is_neg();
  torch::jit::Stack stack{marked ? unmarked(self) : self, format ? IValue(int64_t(*format)) : IValue()};
  call_by_name("aten::clone", &stack);
  auto made = stack[0].toTensor();
  if (self.is_conj()) made = at::conj_physical(made);
  if (self.is_neg()) made = at::neg(made);
  return made;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage from) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(from);
  int64_t count = int64_t(from.nbytes() / impl->itemsize()), one = 1;
  impl->set_sizes_and_strides(c10::IntArrayRef(count), c10::IntArrayRef(one), 0);
  return self;
}

at::Tensor& set_view(at::Tensor& self, at::Storage from, c10::SymInt offset, c10::SymIntArrayRef size,
                     c10::SymIntArrayRef stride) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  c10::SmallVector<int64_t, 5> strides(sizes.size());
  if (stride.size() == size.size()) {
    for (size_t i = 0; i < size.size(); i++) strides[i] = stride[i].guard_int(__FILE__, __LINE__);
  } else {
    int64_t step = 1;
    for (size_t i = sizes.size(); i-- > 0; step *= std::max<int64_t>(sizes[i], 1)) strides[i] = step;
  }
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(from);
  impl->set_sizes_and_strides(sizes, strides, offset.guard_int(__FILE__, __LINE__));
  return self;  // the executor checks the view against the storage when it is used
}

// Which kernel computes attention depends on the executor's device, so the executor chooses.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                     bool grouped) {
  bool grad = at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  int64_t choice = 0;
  if (!(mask && mask->requires_grad())) {
    torch::jit::Stack stack{query.detach(), key.detach(), value.detach(), mask ? IValue(mask->detach()) : IValue(),
                            dropout, causal, scale ? IValue(*scale) : IValue(), grouped};
    call_by_name("aten::_fused_sdp_choice", &stack);
    choice = stack[0].toInt();
  }
  auto bias = mask;
  if (bias && bias->scalar_type() == at::kBool && choice != 0) {
    auto zeros = at::zeros_like(*bias, query.options());
    bias = zeros.masked_fill_(bias->logical_not(), -std::numeric_limits<double>::infinity());
  }
  switch (choice) {
    case 1:
      if (connection->on_cpu)
        return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, bias, scale));
      return std::get<0>(at::_scaled_dot_product_flash_attention(query, key, value, dropout, causal, false, scale));
    case 2:
      return std::get<0>(at::_scaled_dot_product_efficient_attention(query, key, value, bias, grad, dropout, causal, scale));
    case 3:
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(query, key, value, bias, grad, dropout, causal, false, scale));
    default:
      return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, bias, dropout, causal, std::nullopt, scale, grouped));
  }
}

// --- what ATen asks of CUDA outside its dispatcher -------------------------------------------------

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  static bool has_cudnn() { return connection && connection->cudnn > 0; }
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return has_cudnn(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  bool isPinnedPtr(const void*) const override { return false; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { refuse_generator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { refuse_generator(); }
  bool compiledWithCuDNN() const override { return has_cudnn(); }
  bool compiledWithMIOpen() const override { return false; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return has_cudnn(); }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return has_cudnn(); }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return has_cudnn(); }
  bool supportsBFloat16RNNWithCuDNN() const override { return has_cudnn(); }
  long versionCuDNN() const override { return connection ? connection->cudnn : 0; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  std::string showConfig() const override { return "a remote GPU"; }

 private:
  [[noreturn]] static void refuse_generator() {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a torch.Generator of device cuda is not supported on a remote GPU; "
                                "use torch.manual_seed or a generator of device cpu");
    std::abort();
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return c10::Device(c10::kCUDA, 0); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), 0);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

Hooks* hooks = nullptr;

struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}  // that kernels are replaced is the intention
};

}  // namespace

// --- entry points -----------------------------------------------------------------------------------

extern "C" {

// Before PyTorch asks for its CUDA hooks for the first time.
void aliquot_remote_register() {
  at::CUDAHooksRegistry()->Register(
      "CUDAHooks",
      [](at::CUDAHooksArgs args) -> std::unique_ptr<at::CUDAHooksInterface> {
        auto made = std::make_unique<Hooks>(args);
        hooks = made.get();
        return made;
      },
      c10::REGISTRY_PREFERRED);
}

// 0, or 1 if PyTorch has other CUDA hooks already.
int aliquot_remote_connect(int socket) {
  connection = new Connection;
  connection->socket = socket;
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  static c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, new Guard);
  return &at::detail::getCUDAHooks() == hooks ? 0 : 1;
}

// What the executor has said of its device, before anything is installed.
void aliquot_remote_describe(int on_cpu, long cudnn) {
  connection->on_cpu = on_cpu != 0;
  connection->cudnn = cudnn;
}

// Operators by name, one in a line: they are sent. What else has a kernel for CUDA is refused, except
// views, which need no GPU. Returns the number of operators that are sent.
int aliquot_remote_install(const char* names) {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  static auto* libraries = new std::vector<torch::Library>;
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard silent(&quiet);
  auto& dispatcher = c10::Dispatcher::singleton();
  auto put = [&](const c10::OperatorName& name, c10::DispatchKey key, c10::KernelFunction kernel) {
    handles->push_back(dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "aliquot"));
  };
  static const std::unordered_set<std::string> own = {
      "aten::copy_", "aten::_to_copy", "aten::clone", "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset",
      "aten::scaled_dot_product_attention"};
  static const std::unordered_set<std::string> local = {
      "aten::set_.source_Tensor", "aten::set_", "aten::is_set_to", "aten::_has_compatible_shallow_copy_type"};
  std::unordered_set<std::string> sent;
  for (std::string_view rest(names); !rest.empty();) {
    auto end = rest.find('\n');
    sent.emplace(rest.substr(0, end));
    rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
  }
  int count = 0;
  for (const auto& full : sent) {
    auto dot = full.find('.');
    c10::OperatorName name(full.substr(0, dot), dot == full.npos ? "" : full.substr(dot + 1));
    if (own.count(full) || !dispatcher.findSchema(name)) continue;
    put(name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&call_remote>());
    count++;
  }
  auto refuse_rest = [&](c10::DispatchKey key, bool views) {
    for (const auto& name : dispatcher.getRegistrationsForDispatchKey(key)) {
      auto full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
      auto found = dispatcher.findSchema(name);
      if (!found || own.count(full) || (views && (sent.count(full) || local.count(full)))) continue;
      bool view = false;
      for (const auto& result : found->schema().returns())
        view |= result.alias_info() && !result.alias_info()->isWrite();
      if (view && views) continue;
      if (full == "aten::record_stream") put(name, key, c10::KernelFunction::makeFromBoxedFunction<&ignore_call>());
      else put(name, key, c10::KernelFunction::makeFromBoxedFunction<&refuse_call>());
    }
  };
  refuse_rest(c10::DispatchKey::CUDA, true);
  for (auto key : {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA, c10::DispatchKey::QuantizedCUDA,
                   c10::DispatchKey::NestedTensorCUDA})
    refuse_rest(key, false);
  libraries->emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  libraries->back().impl("copy_", TORCH_FN(copy_into));
  libraries->back().impl("_to_copy", TORCH_FN(to_copy));
  libraries->back().impl("clone", TORCH_FN(clone_tensor));
  libraries->back().impl("set_.source_Storage", TORCH_FN(set_storage));
  libraries->back().impl("set_.source_Storage_storage_offset", TORCH_FN(set_view));
  libraries->back().impl("scaled_dot_product_attention", TORCH_FN(attention));
  libraries->emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCUDA, __FILE__, __LINE__);
  libraries->back().impl("scaled_dot_product_attention", TORCH_FN(attention));
  return count;
}

// One control message. 0: `answer` has the answer; else the reason why there is none, and which exception
// it is (client.py). The caller frees it with aliquot_remote_release.
int aliquot_remote_ask(const char* message, size_t size, char** answer, size_t* answer_size) {
  std::string text;
  int status = 0;
  try {
    check_alive();
    std::lock_guard<std::mutex> lock(connection->wire);
    check_alive();
    put_freed();
    put_flags();
    put_frame(CONTROL, std::string(message, size));
    text = wait_for(CONTROL_ANSWER);
  } catch (const c10::Error& error) {
    status = dynamic_cast<const c10::OutOfMemoryError*>(&error) ? 2
           : dynamic_cast<const c10::IndexError*>(&error) ? 3
           : dynamic_cast<const c10::ValueError*>(&error) ? 4
           : dynamic_cast<const c10::TypeError*>(&error) ? 5
           : dynamic_cast<const c10::NotImplementedError*>(&error) ? 6 : 1;
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    status = 1;
    text = error.what();
  }
  *answer = static_cast<char*>(malloc(text.size() + 1));
  memcpy(*answer, text.data(), text.size());
  *answer_size = text.size();
  return status;
}

void aliquot_remote_release(char* answer) { free(answer); }

// How many operators ran, and how often the program waited.
void aliquot_remote_counts(uint64_t* calls, uint64_t* waits) {
  std::lock_guard<std::mutex> lock(connection->wire);
  *calls = connection->calls;
  *waits = connection->waits;
}

// Whether these bytes are a valid answer to a call with so many tensors: for the fuzz test.
int aliquot_remote_valid(const char* bytes, size_t size, uint32_t slots) {
  try {
    read_outcome(Reader{bytes, bytes + size}, slots);
    return 1;
  } catch (const Invalid&) { return 0; }
}

}  // extern "C"
