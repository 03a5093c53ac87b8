// Package proxy carries an agent's connections to listed destinations.
//
// Two doors lead in, both on the runtime's own loopback: an HTTP proxy
// (CONNECT on any listed port, and absolute-form requests) and static
// listeners, one for each listed name and port. Behind both stands the guard
// (internal/dial) and then the dialer, which passes connected sockets.
//
// # What is checked, before a byte of the client's goes out
//
//   - The target is in the manifest: internal/dial.
//   - TLS: the ClientHello's server name is the name asked for. None, or
//     encrypted ClientHello (extension 0xfe0d), is refused. On port 443
//     everything but TLS is refused.
//   - Plain HTTP: the Host of EVERY request is the name asked for. A tunnel
//     whose first bytes are HTTP is therefore served request by request, and
//     framed anew: what a request means is decided once, by net/http, so the
//     two sides cannot disagree where one ends.
//     A request that takes no deciding (plain.go) is served before net/http's
//     server hears of it, by net/http's own parsers; each of them is checked
//     and written anew all the same.
//     What was dialled for such a tunnel ends with its client, used or not.
//   - TLS that begins with anything but a handshake record is refused on other
//     ports than 443 as well: some servers take it, without a name.
//   - Anything else on other ports (ssh, SMTP, databases) passes as it is.
//     What the server says first is passed on at once. A first line that began
//     as no HTTP does and becomes a request all the same ends there.
//
// The header Bulkhead-Denied is the gateway's word: no answer of a destination
// keeps it.
//
// A destination that the manifest marks "sni: any", and one named by address,
// is bound to its addresses only.
//
// # What it does not keep
//
// What is inside TLS is not seen: a server that answers for several names on
// one connection (domain fronting) can be asked for another one inside.
//
// # Limits
//
// Header sizes, the time to send a header or a ClientHello, and the number of
// connections are bounded; bodies and the lifetime of tunnels are not.
package proxy
