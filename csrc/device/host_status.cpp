#include "device/host_status.h"

namespace nbx {

const char* host_status_text(Status status) noexcept {
  switch (status) {
    case kSuccess:
      return "success";
    case kInvalidValue:
      return "an argument is invalid";
    case kAllocationRefused:
      return "the memory does not suffice";
    case kForkedChild:
      return "this process was forked after the device had been opened; start it with the spawn "
             "method, or open the device in the child only";
    case kInvalidDevice:
      return "there is no device of this ordinal";
    case kInvalidImage:
      return "the image holds no code for this device";
    case kNotFound:
      return "the module has nothing of this name";
    case kInvalidHandle:
      return "the handle names nothing that exists";
    case kNotReady:
      return "the work is not complete";
    case kIllegalAddress:
      return "work used an address that is not mapped";
    case kPeerNotEnabled:
      return "access to the peer's memory is not enabled";
    case kNotPermitted:
      return "waiting inside host work would never end";
    case kCaptureInvalid:
      return "the call is not allowed while a stream is captured";
    case kUnsupported:
      return "the primitive is not supported";
    case kSystemFailure:
      return "the operating system refused";
    default:
      return "unknown status";
  }
}

}  // namespace nbx
