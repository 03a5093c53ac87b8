// Package attest keeps what was seen as signed evidence that anybody can check
// without Bulkhead.
//
// # The file
//
// A DSSE envelope (https://github.com/secure-systems-lab/dsse, protocol and
// envelope 1.0.2) with one Ed25519 signature over the pre-authentication encoding
// of [PayloadType] and the payload. The payload is an in-toto Statement, version 1
// (https://github.com/in-toto/attestation/tree/main/spec/v1):
//
//   - subject: the manifest, the kernel, and each agent's image, by SHA-256
//   - predicateType: [PredicateType], the test-result predicate, version 0.1
//   - predicate: result, configuration, and the names of passed, warned and failed
//     tests; and under the key [Extension], as in-toto allows for keys that are
//     URIs, the whole [Evidence]: the reports of verify and prove as they were made
//
// # What is refused
//
// [Open] believes nothing before the signature, and reads strictly: a file that is
// longer than [MaxFile], JSON with a key twice (also when only the case differs,
// which encoding/json would take for the same), unknown keys of the envelope, text
// behind its end, base64 that is not canonical, another payload type, a signature
// by a key that is not among those given, another version of anything.
//
// # What it does not keep
//
// Keys: the warden makes and keeps them (internal/host/warden). A signature says
// which host's warden saw something, not that the host's root told the truth.
package attest
