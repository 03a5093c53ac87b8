// Package net serves net_http_get, net_http_post, net_http_put, net_http_delete
// and net_dns_resolve: exchanges that the gateway makes for its agent.
//
// # What it keeps
//
// A call reaches what the agent's manifest lists and nothing else, by the way
// that the proxy goes: [Config.Policy] is the guard, and [Config.Dial] has the
// warden resolve the name, check every address and pin it in the kernel before
// a connection is made. Nothing here resolves a name or opens a socket, so the
// address that was checked is the address that is dialled, on every hop, and a
// name whose owner changes its address (DNS rebinding) gains nothing.
//
// A URL is read strictly: https or http, a host in one of the forms that
// dial.Normalise takes, no user, no escapes in the host. What another reader
// of the same text could take for another host is refused. http goes only to a
// destination whose port the manifest lists, and never to 443.
//
// A redirect is a new request: its URL is read and checked like the first one.
// From https none leads to http. Towards another origin nothing of the caller's
// header goes along but what describes the content. Five are followed.
//
// TLS is verified for the host that the URL names, against [Config.Roots].
// HTTP/2 is not spoken: nothing listed needs it, and one request for each
// connection at a time is what a check of the answer's size can rely on.
//
// # What it does not keep
//
// A listed name stands for whatever its owner's servers answer. What an agent
// says to a listed destination is not looked at.
package net
