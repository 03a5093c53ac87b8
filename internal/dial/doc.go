// Package dial is the guard: it says what an agent may connect to.
//
// # What it decides
//
// A destination is asked for as a client wrote it, "Host:port". [Normalise]
// brings the host into one form or refuses it; [Policy.Check] finds the line
// of the manifest that covers it; [Policy.Fixed] or DNS gives addresses; and
// [Policy.CheckAddresses] drops every address of IANA's special-purpose
// registries and every address of this host, unless the manifest names that
// very destination: a literal address, an address under "hosts:", or
// "host:PORT".
//
// # What it does not decide
//
// It opens nothing and resolves nothing. Which packets leave is the kernel's
// part (internal/host/nft). A name stands for whatever its owner's DNS says:
// towards a captured gateway a destination is address-exact, not name-exact.
//
// # Static addresses
//
// [StaticFor] gives each listed name an address inside the runtime, so that
// programs that know nothing of proxies work (docs/decisions/0004).
package dial
